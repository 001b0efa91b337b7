#include "server/ctl/doctor/bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/limits.h"
#include "gradwire/client.h"

namespace gradwire::ctl {
namespace {

constexpr int kSmallSteps = 20;
constexpr int kLargeSteps = 5;
constexpr std::uint64_t kFirstBytes = std::uint64_t{16} << 10;
// Travels in one piece.
constexpr std::uint64_t kOneChunkBytes = std::uint64_t{512} << 10;
constexpr std::uint64_t kLeastBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;
constexpr double kLongStep = 1;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// One member with gradients of its own.
class Member {
 public:
  static absl::StatusOr<std::unique_ptr<Member>> Join(const Target& target,
                                                      const std::string& session, int rank,
                                                      int members, const HookSpec& spec,
                                                      const std::vector<ParameterSpec>& model) {
    ClientOptions options{.address = target.address,
                          .session = session,
                          .rank = rank,
                          .world_size = members,
                          .token_file = target.token_file,
                          .parameters = model,
                          .hook = spec,
                          .device = {},
                          .local_socket = false,  // the way that the address names is measured
                          .connect_timeout = target.timeout,
                          .join_timeout = absl::Seconds(30),
                          .step_timeout = absl::Minutes(10),
                          .on_wait = [](const std::string&) {}};
    options.tls = {.ca = target.tls.ca, .cert = target.tls.cert, .key = target.tls.key};
    auto client = Client::Join(options);
    if (!client.ok()) return client.status();
    auto one = std::make_unique<Member>();
    one->client_ = *std::move(client);
    one->model_ = model;
    std::size_t numel = 0;
    for (const ParameterSpec& parameter : model) numel += parameter.numel();
    // Values of full rank, so that a hook that compresses has work.
    std::minstd_rand random(static_cast<unsigned>(rank) + 1);
    std::uniform_real_distribution<float> values(-1, 1);
    one->fresh_.resize(numel);
    for (float& value : one->fresh_) value = values(random);
    return one;
  }

  // Returns the seconds from AllReduce to the verdict.
  absl::StatusOr<double> Step() {
    gradients_ = fresh_;
    auto bucket =
        GradBucket::Make(0, {DType::kFloat32, gradients_.data(), gradients_.size()}, model_);
    if (!bucket.ok()) return bucket.status();
    const auto begin = Clock::now();
    if (absl::Status reduced = client_->AllReduce(*bucket).Wait(); !reduced.ok()) return reduced;
    if (const auto verdict = client_->EndStep(); !verdict.ok()) return verdict.status();
    return SecondsSince(begin);
  }

  Client& client() { return *client_; }

 private:
  std::unique_ptr<Client> client_;
  std::vector<ParameterSpec> model_;
  std::vector<float> fresh_;
  std::vector<float> gradients_;
};

absl::StatusOr<BenchResult> Train(Member& member, int warm_up, int steps) {
  for (int i = 0; i < warm_up; ++i) {
    if (const auto took = member.Step(); !took.ok()) return took.status();
  }
  const ClientMetrics before = member.client().metrics();
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) {
    const auto took = member.Step();
    if (!took.ok()) return took.status();
    seconds.push_back(*took);
  }
  const ClientMetrics after = member.client().metrics();
  if (absl::Status left = member.client().Leave(); !left.ok()) return left;
  const auto count = static_cast<std::uint64_t>(steps);
  return BenchResult{.step_seconds = Median(seconds),
                     .fastest = *std::min_element(seconds.begin(), seconds.end()),
                     .slowest = *std::max_element(seconds.begin(), seconds.end()),
                     .gradient_bytes = (after.gradient_bytes - before.gradient_bytes) / count,
                     .sent_bytes = (after.bytes_sent - before.bytes_sent) / count};
}

ParameterSpec Flat(std::uint64_t elements) {
  return {.name = "w", .shape = {static_cast<std::int64_t>(elements)}, .dtype = DType::kFloat32};
}

// The link without its crossings, by a member alone.
absl::StatusOr<Link> MeasureLatency(const Target& target, const std::string& session) {
  auto member = Member::Join(target, session, 0, 1, {}, {Flat(1)});
  if (!member.ok()) return member.status();
  std::vector<double> steps;
  std::vector<double> trips;
  for (int i = 0; i < kSmallSteps; ++i) {
    const auto took = (*member)->Step();
    if (!took.ok()) return took.status();
    steps.push_back(*took);
    const auto begin = Clock::now();
    if (absl::Status met = (*member)->client().Barrier(); !met.ok()) return met;
    trips.push_back(SecondsSince(begin));
  }
  if (absl::Status left = (*member)->client().Leave(); !left.ok()) return left;
  return Link{.step_seconds = Median(steps), .round_trip_seconds = Median(trips)};
}

}  // namespace

std::string ScratchSession() {
  std::random_device device;
  return absl::StrFormat("%s%08x%08x", kTrialSessionPrefix, device(), device());
}

absl::StatusOr<BenchResult> Bench(const Target& target, const BenchPlan& plan,
                                  const HookSpec& spec) {
  const auto members = static_cast<std::size_t>(plan.members);
  std::vector<absl::StatusOr<BenchResult>> results(members, absl::UnknownError("did not run"));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < members; ++rank) {
    threads.emplace_back([&, rank] {
      auto member = Member::Join(target, plan.session, static_cast<int>(rank), plan.members, spec,
                                 plan.parameters);
      results[rank] = member.ok() ? Train(**member, plan.warm_up, plan.steps) : member.status();
    });
  }
  for (std::thread& one : threads) one.join();
  for (const auto& result : results) {
    if (!result.ok()) return result.status();
  }
  return results.front();
}

absl::StatusOr<Link> MeasureLink(const Target& target, const std::string& session, int members,
                                 std::uint64_t most_bytes) {
  auto link = MeasureLatency(target, session + "-1");
  if (!link.ok()) return link.status();
  link->members = members;
  const std::uint64_t enough = std::clamp(most_bytes, kLeastBytes, kMostBytes);
  Crossing before;
  for (std::uint64_t bytes = kFirstBytes;; bytes *= 2) {
    const auto result = Bench(target,
                              {.session = absl::StrCat(session, "-", bytes),
                               .members = members,
                               .warm_up = 1,
                               .steps = kLargeSteps,
                               .parameters = {Flat(bytes / sizeof(float))}},
                              {});
    if (!result.ok()) return result.status();
    const double took = result->step_seconds;
    // A larger bucket takes longer, whatever the noise says.
    const Crossing one{.bytes = static_cast<double>(bytes),
                       .seconds = std::max(took - link->step_seconds, before.seconds)};
    link->crossings.push_back(one);
    if (bytes <= kOneChunkBytes) {
      link->whole_bytes_per_second = members * one.bytes / std::max(one.seconds, 1e-9);
    }
    if (took < kLongStep && bytes < enough) {
      before = one;
      continue;
    }
    const double crossed = members * one.bytes / std::max(one.seconds, 1e-9);
    // Of a large bucket, results come back while the rest still leaves.
    link->bytes_per_second = std::max(crossed, 2 * link->whole_bytes_per_second);
    return link;
  }
}

}  // namespace gradwire::ctl

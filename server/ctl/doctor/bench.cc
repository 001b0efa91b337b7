#include "server/ctl/doctor/bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/client.h"

namespace gradwire::ctl {
namespace {

constexpr int kWarmUp = 4;
constexpr int kSmallSteps = 20;
constexpr std::size_t kFirstElements = std::size_t{1} << 16;
constexpr std::size_t kMostLinkElements = std::size_t{1} << 26;
constexpr double kLongStep = 0.5;

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

absl::StatusOr<BenchResult> Train(Member& member, int steps) {
  for (int i = 0; i < kWarmUp; ++i) {
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

// The median seconds of steps with this many elements in a session of one member.
absl::StatusOr<double> StepsOf(const Target& target, const std::string& session,
                               std::size_t elements, int steps, double* round_trip) {
  const ParameterSpec parameter{
      .name = "w", .shape = {static_cast<std::int64_t>(elements)}, .dtype = DType::kFloat32};
  auto member = Member::Join(target, session, 0, 1, {}, {parameter});
  if (!member.ok()) return member.status();
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) {
    const auto took = (*member)->Step();
    if (!took.ok()) return took.status();
    seconds.push_back(*took);
  }
  std::vector<double> trips;
  for (int i = 0; round_trip != nullptr && i < kSmallSteps; ++i) {
    const auto begin = Clock::now();
    if (absl::Status met = (*member)->client().Barrier(); !met.ok()) return met;
    trips.push_back(SecondsSince(begin));
  }
  if (round_trip != nullptr) *round_trip = Median(trips);
  if (absl::Status left = (*member)->client().Leave(); !left.ok()) return left;
  return Median(seconds);
}

}  // namespace

std::string ScratchSession() {
  std::random_device device;
  return absl::StrFormat("gradwire-bench-%08x%08x", device(), device());
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
      results[rank] = member.ok() ? Train(**member, plan.steps) : member.status();
    });
  }
  for (std::thread& one : threads) one.join();
  for (const auto& result : results) {
    if (!result.ok()) return result.status();
  }
  return results.front();
}

absl::StatusOr<Link> MeasureLink(const Target& target, const std::string& session) {
  Link link;
  const auto small =
      StepsOf(target, absl::StrCat(session, "-1"), 1, kSmallSteps, &link.round_trip_seconds);
  if (!small.ok()) return small.status();
  link.step_seconds = *small;
  for (std::size_t elements = kFirstElements;; elements *= 2) {
    const auto large = StepsOf(target, absl::StrCat(session, "-", elements), elements, 3, nullptr);
    if (!large.ok()) return large.status();
    const double longer = std::max(*large - *small, 1e-9);
    link.bytes_per_second = static_cast<double>(elements * sizeof(float)) / longer;
    if (*large >= kLongStep || elements >= kMostLinkElements) return link;
  }
}

}  // namespace gradwire::ctl

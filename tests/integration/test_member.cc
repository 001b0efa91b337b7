// A member as a process of its own: all-reduces one bucket per step and checks the result, with
// --hook against the same hook without any session, which has done the same steps.
//
// Prints "joined", then per step "step N apply", in the end "done". Exits 1 with "error: …" on an
// error, 2 on a wrong result or flag. With --die-after-bytes it kills itself, by SIGKILL or by the
// signal of --die-by, once it has sent so many bytes and is in the middle of a bucket. With
// --late-ms it computes for so long before each step. With --shares-memory it is an error if it
// does not share memory with the daemon. With --trains it adds up the means as a model, gets that
// from the others if it comes in the place of a lost member, and prints its digest after each step
// and as "model DIGEST" in the end; nothing else is checked then, unless --checks-mean has it
// compare each mean with that of the session's members, as it knows them. With --node ranks are
// behind leaf daemons, so many behind each, in their order. After SIGTERM it ends its step, leaves
// before the others, and says who has its residuals.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error_code.h"
#include "gradwire/client.h"
#include "proto/wire/digest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/hook_world.h"

namespace gradwire {
namespace {

using Flags = std::map<std::string, std::string>;

constexpr char kUsage[] =
    "usage: gradwire_test_member --address A --session S [--rank R] [--world-size N] [--elements E]"
    " [--steps K]\n"
    "         [--hook SPEC] [--die-after-bytes B] [--die-by SIGNAL] [--late-ms M] [--shares-memory "
    "1]"
    " [--trains 1] [--checks-mean 1] [--node M]\n";

int Fail(const absl::Status& status) {
  std::cout << "error: " << status << std::endl;
  return 1;
}

std::int64_t Number(const Flags& flags, const std::string& name, std::int64_t otherwise) {
  const auto found = flags.find(name);
  return found == flags.end() ? otherwise : std::strtoll(found->second.c_str(), nullptr, 10);
}

volatile std::sig_atomic_t told_to_leave = 0;

int LeaveEarly(Client& client) {
  const auto left = client.HandOverAndLeave(absl::Seconds(10));
  if (!left.ok()) return Fail(left.status());
  if (left->rank) {
    std::cout << "residuals to rank " << *left->rank << std::endl;
  } else {
    std::cout << "residuals to nobody: " << left->reason << std::endl;
  }
  return 0;
}

void DieInMidBucket(const Client& client, const Completion& reduced, std::int64_t bytes, int by) {
  while (!reduced.done() && client.metrics().bytes_sent < static_cast<std::uint64_t>(bytes)) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (reduced.done()) return;
  // The end that a crash has without anybody's handler, and no file of a test's memory.
  prctl(PR_SET_DUMPABLE, 0);
  if (by != SIGKILL) signal(by, SIG_DFL);
  kill(getpid(), by);
}

// A vector; for a hook a matrix and a vector.
std::vector<ParameterSpec> Model(std::size_t elements, bool has_hook) {
  if (!has_hook) return {testing::MakeParameter("w", elements)};
  constexpr std::int64_t kColumns = 50;
  return {{.name = "w",
           .shape = {static_cast<std::int64_t>(elements) / kColumns, kColumns},
           .dtype = DType::kFloat32},
          testing::MakeParameter("b", 30)};
}

// As a leaf daemon adds up the gradients of its node's members, with the ranks from `first` on.
std::vector<std::byte> MeanOfNode(const std::vector<ParameterSpec>& manifest, int first,
                                  int members, std::int64_t step) {
  testing::Gradients gradients(manifest);
  std::vector<double> sums(gradients.bytes().size() / sizeof(float));
  for (int rank = first; rank < first + members; ++rank) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto value = static_cast<float>(testing::GradientValue(rank, step, i));
      sums[i] += static_cast<double>(value / static_cast<float>(members));
    }
  }
  const std::vector<float> means(sums.begin(), sums.end());
  const auto bytes = std::as_bytes(std::span(means));
  return {bytes.begin(), bytes.end()};
}

// What an applied step leaves in the bucket, after those that were applied before. `node`: so many
// members are behind each leaf daemon, or 1.
class Reference {
 public:
  Reference(const HookSpec& spec, const ClientOptions& options, int node)
      : node_(node),
        world_(testing::HookWorld::Make(options.world_size / node, spec, options.parameters)) {}

  absl::StatusOr<std::vector<std::byte>> Apply(std::int64_t step) {
    if (!world_.ok()) return world_.status();
    testing::HookWorld& world = **world_;
    std::vector<testing::MemberGradients> all;
    for (std::size_t rank = 0; rank < world.world_size(); ++rank) {
      const std::vector<std::byte> gradients =
          MeanOfNode(world.manifest(), static_cast<int>(rank) * node_, node_, step);
      auto from = gradients.begin();
      testing::MemberGradients& own = all.emplace_back();
      for (const ParameterSpec& parameter : world.manifest()) {
        const auto to = from + static_cast<std::ptrdiff_t>(parameter.numel() * sizeof(float));
        own.emplace_back(from, to);
        from = to;
      }
    }
    std::vector<std::size_t> bucket(world.manifest().size());
    std::iota(bucket.begin(), bucket.end(), std::size_t{0});
    const absl::StatusOr<Verdict> verdict = world.RunStep(all, {bucket});
    if (!verdict.ok()) return verdict.status();
    std::vector<std::byte> bytes;
    for (const auto& part : all[0]) bytes.insert(bytes.end(), part.begin(), part.end());
    return bytes;
  }

 private:
  const int node_;
  absl::StatusOr<std::unique_ptr<testing::HookWorld>> world_;
};

// What the steps that were applied come to.
class Trained {
 public:
  explicit Trained(std::size_t numel) : sums_(numel) {}

  void Add(const std::vector<std::byte>& mean) {
    std::vector<float> values(mean.size() / sizeof(float));
    std::memcpy(values.data(), mean.data(), mean.size());
    for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += static_cast<double>(values[i]);
  }

  // Gives it to newcomers, or gets it as one, if there are any. Where another member is lost
  // meanwhile, the next step will be dropped, and there is another change after it.
  absl::Status Heal(Client& client) {
    const auto change = client.membership_change();
    if (!change || change->newcomers.empty()) return absl::OkStatus();
    const absl::Status given =
        client.Broadcast(change->root, sums_.data(), sums_.size() * sizeof(double));
    std::cout << "heal " << (given.ok() ? "done" : "void") << std::endl;
    return absl::IsAborted(given) &&
                   FindCode(std::string(given.message())) == ErrorCode::kMembershipChanged
               ? absl::OkStatus()
               : given;
  }

  std::uint64_t digest() const { return wire::DigestOf(std::as_bytes(std::span(sums_))); }

 private:
  std::vector<double> sums_;
};

// Up to the rounding of weights and sums.
bool IsMeanOf(const std::vector<int>& ranks, std::int64_t step,
              const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    double sum = 0;
    double size = 0;
    for (const int rank : ranks) {
      const double value = testing::GradientValue(rank, step, i);
      sum += value;
      size += std::abs(value);
    }
    const auto members = static_cast<double>(ranks.size());
    if (std::abs(static_cast<double>(values[i]) - sum / members) > 1e-6 * size) return false;
  }
  return true;
}

absl::StatusOr<std::vector<std::byte>> Expected(Reference* reference, const ClientOptions& options,
                                                std::int64_t step) {
  if (reference != nullptr) return reference->Apply(step);
  return testing::ExpectedReduction({}, options.parameters, options.world_size, step);
}

int Run(const Flags& flags) {
  const auto elements = static_cast<std::size_t>(Number(flags, "--elements", 1000));
  const bool has_hook = flags.contains("--hook");
  const absl::StatusOr<HookSpec> spec = HookSpec::Parse(has_hook ? flags.at("--hook") : "no");
  if (!spec.ok()) return Fail(spec.status());
  ClientOptions options{.address = flags.at("--address"),
                        .session = flags.at("--session"),
                        .rank = static_cast<int>(Number(flags, "--rank", -1)),
                        .world_size = static_cast<int>(Number(flags, "--world-size", 1)),
                        .parameters = Model(elements, has_hook),
                        .hook = *spec};
  const int node = static_cast<int>(Number(flags, "--node", 1));
  if (node > 1) {
    options.local_rank = options.rank % node;
    options.local_world_size = node;
  }
  std::unique_ptr<Reference> reference;
  if (has_hook || node > 1) reference = std::make_unique<Reference>(*spec, options, node);
  auto client = Client::Join(options);
  if (!client.ok()) return Fail(client.status());
  if (Number(flags, "--shares-memory", 0) != 0 && !(*client)->metrics().shared_memory) {
    return Fail(absl::InternalError("no memory is shared with the daemon"));
  }
  signal(SIGTERM, [](int) { told_to_leave = 1; });
  std::cout << "joined" << std::endl;
  const std::int64_t die_after = Number(flags, "--die-after-bytes", -1);
  const int die_by = static_cast<int>(Number(flags, "--die-by", SIGKILL));
  const bool trains = Number(flags, "--trains", 0) != 0;
  const bool checks_mean = Number(flags, "--checks-mean", 0) != 0;
  std::size_t numel = 0;
  for (const ParameterSpec& parameter : options.parameters) numel += parameter.numel();
  Trained model(numel);
  for (std::int64_t step = (*client)->step(); step < Number(flags, "--steps", 1); ++step) {
    if (trains) {
      if (absl::Status healed = model.Heal(**client); !healed.ok()) return Fail(healed);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(Number(flags, "--late-ms", 0)));
    testing::Gradients gradients(options.parameters);
    gradients.Fill((*client)->rank(), step);
    GradBucket bucket = gradients.Bucket();
    const Completion reduced = (*client)->AllReduce(bucket);
    if (die_after >= 0) DieInMidBucket(**client, reduced, die_after, die_by);
    if (absl::Status status = reduced.Wait(); !status.ok()) return Fail(status);
    const auto verdict = (*client)->EndStep();
    if (!verdict.ok()) return Fail(verdict.status());
    if (*verdict == Verdict::kApply && trains) {
      model.Add(gradients.bytes());
      if (checks_mean && !IsMeanOf((*client)->members(), step, gradients.bytes())) {
        std::cout << "wrong mean in step " << step << std::endl;
        return 2;
      }
    } else if (*verdict == Verdict::kApply) {
      const auto expected = Expected(reference.get(), options, step);
      if (!expected.ok()) return Fail(expected.status());
      if (gradients.bytes() != *expected) {
        std::cout << "wrong result in step " << step << std::endl;
        return 2;
      }
    }
    std::cout << "step " << step << (*verdict == Verdict::kApply ? " apply" : " skip");
    if (trains) std::cout << " " << model.digest();
    std::cout << std::endl;
    if (told_to_leave != 0) return LeaveEarly(**client);
  }
  if (trains) std::cout << "model " << model.digest() << std::endl;
  if (absl::Status status = (*client)->Leave(); !status.ok()) return Fail(status);
  std::cout << "done" << std::endl;
  return 0;
}

}  // namespace
}  // namespace gradwire

int main(int argc, char** argv) {
  gradwire::Flags flags;
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool asks = std::find(words.begin(), words.end(), "--help") != words.end();
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) flags[words[i]] = words[i + 1];
  if (asks || words.size() % 2 != 0 || !flags.contains("--address") ||
      !flags.contains("--session")) {
    (asks ? std::cout : std::cerr) << gradwire::kUsage;
    return asks ? 0 : 2;
  }
  return gradwire::Run(flags);
}

// Members in this process that train with a daemon, to measure it. Each wait has a deadline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/hook_spec.h"
#include "server/ctl/calls.h"
#include "server/ctl/doctor/cost.h"

namespace gradwire::ctl {

struct BenchPlan {
  std::string session;  // a name of its own; the hook's number is added to it
  int members = 2;
  int warm_up = 4;  // steps before the measured ones, in which a hook does not compress yet
  int steps = 20;
  std::vector<ParameterSpec> parameters = {};
};

// Of rank 0.
struct BenchResult {
  double step_seconds = 0;  // median, from AllReduce to the verdict
  double fastest = 0;
  double slowest = 0;
  std::uint64_t gradient_bytes = 0;  // of one step
  std::uint64_t sent_bytes = 0;      // payload in one step
};

// A name for a session that nobody else has: "gradwire-bench-" and 16 hexadecimal digits.
std::string ScratchSession();

// One session with this hook, which it leaves. Takes members times the model's bytes, twice.
absl::StatusOr<BenchResult> Bench(const Target& target, const BenchPlan& plan,
                                  const HookSpec& spec);

// By sessions of its own: small steps of one member for the latency, then buckets of `members`
// members that double until a step takes a second, or until a bucket has `most_bytes` (at least
// 4 MiB, at most 256 MiB).
absl::StatusOr<Link> MeasureLink(const Target& target, const std::string& session, int members,
                                 std::uint64_t most_bytes);

}  // namespace gradwire::ctl

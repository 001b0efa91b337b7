// What a step costs on a link: the prediction of `gradwirectl doctor`, and the bytes of that of
// `gradwirectl plan`. No I/O; MeasureCost uses the
// clock and the processor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/hook_spec.h"

namespace gradwire::ctl {

// What one member sends in one round, and receives as the result.
struct RoundCost {
  std::uint64_t streamed_bytes = 0;  // a result leaves while later contributions still arrive
  std::uint64_t whole_bytes = 0;     // orthonormalized: the result waits for all contributions
};

struct StepCost {
  std::vector<RoundCost> rounds = {};
  double compute_seconds = 0;  // beside the network, for hooks that compute before they send

  std::uint64_t bytes() const;  // that a member sends
};

// How long some members took for a bucket of so many bytes each, beyond the smallest step.
struct Crossing {
  double bytes = 0;
  double seconds = 0;
};

// The link between the members and the daemon, as measured from one end.
struct Link {
  double bytes_per_second = 0;  // each way, at the same time
  double step_seconds = 0;      // of a step with one element: one round and the verdict
  double round_trip_seconds = 0;
  // Of what arrives as a whole before it returns; up and down in turn.
  double whole_bytes_per_second = 0;
  int members = 1;                       // of whom the crossings are
  std::vector<Crossing> crossings = {};  // by rising bytes
};

// For a bucket of each of link.members, up and down: between the measured sizes by interpolation,
// above them at the link's rate. Small buckets take twice as long for a byte as large ones, whose
// first results come back while the rest still leaves.
double CrossingSeconds(const Link& link, double bytes);

// Text for MakeHook and Join: the hook's name, or its spec as HookSpec::Parse takes it. Hooks that
// begin to compress after some steps do so after two, unless the text says when.
absl::StatusOr<HookSpec> HookFromText(const std::string& text);

// The rounds of a step with all parameters in one bucket, once the hook compresses, as its own plan
// has them. Pure.
absl::StatusOr<std::vector<RoundCost>> PlannedRounds(const HookSpec& spec,
                                                     const std::vector<ParameterSpec>& parameters);

// The cost of a step with all parameters in one bucket, once the hook compresses: its rounds by the
// hook's own plan, and the processor's time in this process for a member's work and the
// coordinator's (the median of some steps). Runs the hook on gradients of its own.
absl::StatusOr<StepCost> MeasureCost(const HookSpec& spec,
                                     const std::vector<ParameterSpec>& parameters);

// The time of a step from its AllReduce to its verdict. All members reach the daemon over one link,
// which n members fill n times (n C / B, a star with one server), with 2 a for each further round.
// A result that waits for all contributions comes back after them.
double StepSeconds(const StepCost& cost, int members, const Link& link);

}  // namespace gradwire::ctl

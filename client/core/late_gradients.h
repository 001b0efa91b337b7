// Gradients that a member has computed too late for their step (wire::Missed), until they are part
// of a later one.
//
// They are sums by parameter, because buckets may change from step to step, in float32 (float64 for
// gradients of that dtype). They lie in the host's memory, and so do the gradients. Values that are
// not finite are not kept: with them in time the step would have been skipped. A member that leaves
// may give its own to one that stays. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/hook.h"
#include "gradwire/hooks/round_plan.h"

namespace gradwire::client {

class LateGradients {
 public:
  struct Sum {
    DType dtype = DType::kFloat32;
    std::vector<std::byte> values{};
    int skips = 0;  // of steps that it had entered
  };
  using Sums = std::map<std::uint32_t, Sum>;  // by position

  // Between two steps: what waits for the next one.
  const Sums& kept() const { return kept_; }
  // Another member's, which are kept when the open step is over.
  const Sums& coming() const { return coming_; }
  // Of the open step: what it goes on without, with what was kept of the same parameters; and of
  // which parameters it has what was kept.
  const Sums& missed() const { return missed_; }
  const std::set<std::uint32_t>& entered() const { return entered_; }

  // The bucket begins, and no hook has seen it: adds what is kept of its parameters (`positions` in
  // the manifest). Once in a step, whatever becomes of the bucket.
  void Enter(std::span<const std::uint32_t> positions, const GradBucket& bucket);

  // The open step goes on without these gradients: they are kept if it is applied. A skipped step
  // loses the gradients of all members.
  void Miss(std::span<const std::uint32_t> positions, const GradBucket& bucket);

  // The open step is over. What entered it is part of it if it is applied, and kept otherwise; but
  // not for more than a few skips, of which it may be the cause: sums of 16 bits overflow.
  // `dropped`: the step was lost with its daemon.
  void Conclude(Verdict verdict, bool dropped = false);

  // A step that was applied went on without them.
  void Keep(std::span<const std::uint32_t> positions, const GradBucket& bucket);

  // Between two steps: the trainer goes back to another state, or another member has them.
  void Clear() { kept_.clear(); }

  // What is kept, between two steps, for another member's Take. `manifest`: the session's.
  HookState State(std::span<const ParameterSpec> manifest) const;
  static bool IsLate(const HookState& state);
  // Keeps those of another member, too, in this one's loss scale. At any time: what of a parameter
  // has a part in the open step is not touched. InvalidArgument, and nothing has changed: they are
  // not of this model, or a sum is not finite.
  absl::Status Take(const HookState& state, std::span<const ParameterSpec> manifest);

  // From now on gradients are multiplied by `scale` (Hook::SetLossScale).
  void SetLossScale(double scale);

 private:
  bool IsInStep(std::uint32_t position) const;

  Sums kept_;
  Sums missed_;
  Sums coming_;  // of parameters that the trainer has begun in the open step
  std::set<std::uint32_t> entered_;
  double scale_ = 1;
};

}  // namespace gradwire::client

// Gradients that a member has computed too late for their step (wire::Missed), until they are part
// of a later one.
//
// They are sums by parameter, because buckets may change from step to step, in float32 (float64 for
// gradients of that dtype). They lie in the host's memory, and so do the gradients. Values that are
// not finite are not kept: with them in time the step would have been skipped. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "gradwire/hooks/grad_bucket.h"
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

  // Between two steps: the trainer goes back to another state.
  void Clear() { kept_.clear(); }

  // From now on gradients are multiplied by `scale` (Hook::SetLossScale).
  void SetLossScale(double scale);

 private:
  Sums kept_;
  Sums missed_;  // in the open step, with what was kept of the same parameters
  std::set<std::uint32_t> entered_;
  double scale_ = 1;
};

}  // namespace gradwire::client

// Rank 0's draw plan on its way. It is kept until the daemon must have it, so that a new stream can
// bring it again. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "client/core/effects.h"
#include "hooks/draw_buckets.h"

namespace gradwire::client {

class DrawPlanSending {
 public:
  // Sends the plan, in pieces that fit a frame each. `step` is the open one.
  void Set(const DrawBuckets& buckets, std::uint64_t generation, std::int64_t step,
           Effects& effects);
  // This member has announced a bucket that is drawn for: a later plan has no effect, and is not
  // brought again.
  void Fix() { fixed_ = true; }
  // All of it, from its first piece.
  void Send(Effects& effects) const;
  // A step is over, `next` is open. What this member announced in the step after the plan's own
  // came after the plan, in the same lane.
  void StepDone(std::int64_t next);
  // Before StepDone, in a session that outlives its daemon: nobody else has the plan from steps
  // that are skipped, so another daemon would have to get it from here.
  void StepsSkipped(std::int64_t steps) { step_ += steps; }
  void Forget() { pieces_.clear(); }
  // The daemon's state was replaced, and its plan with it.
  void Reset() {
    Forget();
    fixed_ = false;
  }
  // Another daemon took over the session.
  void SetGeneration(std::uint64_t generation);

 private:
  std::vector<wire::DrawPlan> pieces_;  // none: there is nothing to bring again
  std::int64_t step_ = 0;
  bool fixed_ = false;
};

}  // namespace gradwire::client

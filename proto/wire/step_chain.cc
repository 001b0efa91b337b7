#include "proto/wire/step_chain.h"

#include "proto/wire/digest.h"

namespace gradwire::wire {

// The results of a step that is skipped do not count. Nobody applies them, and a member that hears
// from a fresh daemon that a step was skipped may lack them.
void StepChain::Advance(const StepDone& done) {
  if (done.step < step_) return;
  const bool follows = known() && done.step == step_;
  step_ = done.step + 1;
  const std::uint64_t digest = done.verdict == Verdict::kApply ? done.digest : 0;
  const std::uint64_t next =
      CombineDigests(CombineDigests(value_, digest), static_cast<std::uint64_t>(done.verdict));
  value_ = !follows ? 0 : next == 0 ? 1 : next;  // 0 would mean that it is not known
}

}  // namespace gradwire::wire

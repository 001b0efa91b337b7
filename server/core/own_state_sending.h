// What only the coordinator knows of its hook's state, on its way to members of a session that
// outlives it: with the step that changes it, before they can be READY. So whoever can conclude the
// step without this daemon has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradwire/hooks/round_plan.h"
#include "hooks/coordinator_hook.h"
#include "server/core/effects.h"

namespace gradwire::server {

// Not thread-safe. `hook` outlives it; null: there is nothing to be known.
class OwnStateSending {
 public:
  OwnStateSending(const CoordinatorHook* hook, std::size_t chunk_bytes)
      : hook_(hook), chunk_bytes_(chunk_bytes) {}

  // The step is prepared; its Prepared follows. Nothing is sent if members know all of it.
  void Prepare(std::int64_t step, Verdict verdict, const std::vector<int>& ranks, Effects& effects);
  // The same again, for a member that resumes in this step.
  void Repeat(int rank, Effects& effects) const;
  // The step is over.
  void Conclude(Verdict verdict);
  // The hook has its state from the members.
  void Restored() { known_ = hook_->OwnVersion(); }
  // There are members that know nothing of it.
  void TellAgain() { known_ = kNobodyKnows; }

 private:
  static constexpr std::uint64_t kNobodyKnows = UINT64_MAX;

  const CoordinatorHook* const hook_;
  const std::size_t chunk_bytes_;
  std::uint64_t known_ = 0;          // the version that members have
  std::uint64_t told_ = 0;           // that they get with this step
  std::vector<wire::Frame> frames_;  // of this step
};

}  // namespace gradwire::server

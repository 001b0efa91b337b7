#include "server/core/hook_state.h"

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire::server {

absl::StatusOr<HookState> StateSnapshot::State() const {
  absl::StatusOr<HookState> state = hook->State();
  if (state.ok()) state->metadata["step"] = absl::StrCat(step);
  return state;
}

absl::Status SessionHookState::CheckIsThere() const {
  if (hook_ != nullptr) return absl::OkStatus();
  return Coded(ErrorCode::kNoState,
               absl::FailedPreconditionError(absl::StrCat(
                   "session \"", session_,
                   "\" has a hook of its members' own, which keeps no state on the coordinator")));
}

absl::Status SessionHookState::CheckReplaceable(const Moment& moment) const {
  if (absl::Status status = CheckIsThere(); !status.ok()) return status;
  const auto [state, step, in_step, paused] = moment;
  if (in_step) {
    return Coded(ErrorCode::kStateInStep,
                 absl::FailedPreconditionError(absl::StrCat(
                     "session \"", session_,
                     paused ? absl::StrCat("\" is paused, but members have begun step ", step,
                                           " with the present state")
                            : absl::StrCat("\" is in the middle of step ", step),
                     "; import between two steps, while the training script keeps all members in a "
                     "barrier")));
  }
  if (state == SessionState::kRunning) return absl::OkStatus();
  return Coded(ErrorCode::kStateInStep, absl::FailedPreconditionError(absl::StrCat(
                                            "session \"", session_, "\" is ", Name(state),
                                            "; a state goes into a running one")));
}

StateSnapshot SessionHookState::Export(std::int64_t step) const {
  return {.hook = hook_->Snapshot(), .step = step, .imports = imports_};
}

void SessionHookState::Install(HookImport& import) {
  hook_->Install(import);
  ++imports_;
}

std::shared_ptr<const HookSnapshot> SessionHookState::Snapshot() const {
  return hook_ == nullptr ? nullptr : hook_->Snapshot();
}

}  // namespace gradwire::server

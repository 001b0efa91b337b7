// The coordinator's half of the hook, as far as its state is exported, imported and reported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hooks/coordinator_hook.h"
#include "server/core/session_state.h"

namespace gradwire::server {

// The hook's state after a step. Thread-safe.
struct StateSnapshot {
  std::shared_ptr<const HookSnapshot> hook;
  std::int64_t step = 0;
  std::uint64_t imports = 0;  // with `step` it says which state of the session's it is

  // As a file has it. Takes time in proportion to the state.
  absl::StatusOr<HookState> State() const;
};

// Owns the hook. Not thread-safe, but for ReadState.
class SessionHookState {
 public:
  // `hook` is null for a user's own, whose state is the members'. `session` is for messages.
  SessionHookState(std::unique_ptr<CoordinatorHook> hook, std::string session)
      : hook_(std::move(hook)), session_(std::move(session)) {}

  CoordinatorHook* hook() const { return hook_.get(); }

  // FailedPrecondition: there is no state on the coordinator. The others must not be called then,
  // but for CheckReplaceable, Snapshot, iteration and bytes.
  absl::Status CheckIsThere() const;

  // When a state is to replace this one.
  struct Moment {
    SessionState state = SessionState::kJoining;
    std::int64_t step = 0;
    bool in_step = false;  // a member has begun it
    bool paused = false;   // an operator holds the step back
  };
  // Whether that may be. A step under way would combine gradients that were compressed with two
  // states, and members that join later would not learn of the new one. A pause does not help:
  // members that wait in it have begun their next step.
  absl::Status CheckReplaceable(const Moment& moment) const;

  StateSnapshot Export(std::int64_t step) const;
  // Checks an exported state and makes ready what replaces this one. Takes time in proportion to
  // the state. Any thread, at any time.
  absl::StatusOr<std::shared_ptr<HookImport>> ReadState(const HookState& state) const {
    return hook_->ReadState(state);
  }
  void Install(HookImport& import);

  // What a report of the compression is made of. Null: there is no state.
  std::shared_ptr<const HookSnapshot> Snapshot() const;
  std::int64_t iteration() const { return hook_ == nullptr ? 0 : hook_->iteration(); }
  // Upper bound of what the state's tensors take.
  std::size_t bytes() const { return hook_ == nullptr ? 0 : hook_->StateBytes(); }

 private:
  const std::unique_ptr<CoordinatorHook> hook_;
  const std::string session_;
  std::uint64_t imports_ = 0;
};

}  // namespace gradwire::server

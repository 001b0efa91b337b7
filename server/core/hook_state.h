// The coordinator's half of the hook, as far as its state is exported, imported and reported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hooks/coordinator_hook.h"
#include "server/core/manifest.h"
#include "server/core/session_state.h"
#include "server/core/shard_place.h"
#include "server/core/state_file.h"

namespace gradwire::server {

// The hook's state after a step. Thread-safe.
struct StateSnapshot {
  std::shared_ptr<const HookSnapshot> hook;
  std::int64_t step = 0;
  std::uint64_t imports = 0;  // with `step` it says which state of the session's it is
  ShardPlace shard{};

  // As a file has it: of several shards, this one's part (hooks/state_parts.h). Takes time in
  // proportion to the state.
  absl::StatusOr<HookState> State() const;
};

// Upper bound of the bytes of a file with the hook's state, exported or a member's copy. 0: it has
// none.
std::size_t StateFileBytes(const CoordinatorHook* hook, const Manifest& manifest);

// Owns the hook. Not thread-safe, but for ReadState and ReadCopy.
class SessionHookState {
 public:
  // `hook` is null for a user's own, whose state is the members'. `session` is for messages.
  SessionHookState(std::unique_ptr<CoordinatorHook> hook, std::string session,
                   ShardPlace shard = {})
      : hook_(std::move(hook)), session_(std::move(session)), shard_(std::move(shard)) {}

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
    // The lead of several shards has concluded the step, or is about to, and this one has not
    // heard.
    bool concluding = false;
    std::uint32_t shards = 1;  // that the state goes to
  };
  // Whether that may be. A step under way would combine gradients that were compressed with two
  // states, and members that join later would not learn of the new one. A pause does not help:
  // members that wait in it have begun their next step. Unavailable: in a moment, because a member
  // that is between two steps may be ahead of a shard which waits to hear how the step ended. A
  // state must go to all shards of the session.
  absl::Status CheckReplaceable(const Moment& moment) const;

  StateSnapshot Export(std::int64_t step) const;
  // Checks an exported state and makes ready what replaces this one. Each of several shards takes
  // the state of all, so that any of them can refuse it. Takes time in proportion to the state. Any
  // thread, at any time.
  absl::StatusOr<std::shared_ptr<HookImport>> ReadState(const HookState& state) const;
  void Install(HookImport& import);

  // The same after the loss of a daemon, from members' copies as their files have them. Nothing is
  // replaced by it, for members have the state.
  // FailedPrecondition: what two files have in common is not the same, and the error names the
  // ranks.
  absl::StatusOr<std::shared_ptr<HookImport>> ReadCopy(std::span<const StateFile> files) const;
  void Restore(HookImport& import) { hook_->Install(import); }

  // What a report of the compression is made of. Null: there is no state.
  std::shared_ptr<const HookSnapshot> Snapshot() const;
  std::int64_t iteration() const { return hook_ == nullptr ? 0 : hook_->iteration(); }
  // Upper bound of what the state's tensors take.
  std::size_t bytes() const { return hook_ == nullptr ? 0 : hook_->StateBytes(); }

 private:
  const std::unique_ptr<CoordinatorHook> hook_;
  const std::string session_;
  const ShardPlace shard_;
  std::uint64_t imports_ = 0;
};

}  // namespace gradwire::server

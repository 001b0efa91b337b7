// What a member holds of the coordinator's state, so that a fresh daemon can have it back: the
// hook's copy, and what only the coordinator knows, as it came with the last step that changed it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "client/core/effects.h"
#include "proto/wire/byte_pieces.h"

namespace gradwire::client {

// Not thread-safe.
class CoordinatorCopy {
 public:
  // `parameters` of the manifest bound what the coordinator may say.
  explicit CoordinatorCopy(std::size_t parameters) : parameters_(parameters) {}

  // Of the open step. InvalidArgument: it does not fit what came before, or is no such state. Once
  // all of it is here, what a resume repeats has no effect: the member may be READY with it.
  absl::Status Take(const wire::CoordinatorState& state, const wire::Payload* piece);
  // The step is over: what came in it counts.
  void Apply();
  void Drop() { pending_.Take(); }
  // A state from a file has replaced the coordinator's. What that knows comes with the next step.
  void OnReset() { unknown_ = true; }

  // `held`: Hook::Copy.
  void Answer(const wire::StateRequest& request, HookState held, std::uint64_t generation,
              std::size_t chunk_bytes, Effects& effects) const;

 private:
  const std::size_t parameters_;
  wire::PieceReader pending_;
  HookState next_;  // once `pending_` is complete
  HookState own_;
  bool unknown_ = false;
};

}  // namespace gradwire::client

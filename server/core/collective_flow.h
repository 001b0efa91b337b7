// Broadcasts and barriers as a session sees them: frames in, frames out, and how long one takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/core/collectives.h"
#include "server/core/effects.h"
#include "server/core/failure_policy.h"
#include "server/core/session_options.h"

namespace gradwire::server {

// Not thread-safe. All that it refers to outlives it.
class CollectiveFlow {
 public:
  CollectiveFlow(const SessionOptions& options, const Membership& membership);

  // All members are here, and know who is elsewhere.
  void Begin();
  // As Collectives::GoOnFrom.
  void GoOnFrom(std::uint64_t number, const std::vector<bool>& through) {
    collectives_.GoOnFrom(number, through);
  }
  // A frame that no other part of the session knows.
  MaybeFailure OnFrame(int rank, const wire::Frame& frame, absl::Time now, Effects& effects);
  // Of a leaf: what comes of the open one at the root.
  MaybeFailure OnUpstream(const UpstreamProgress& progress, absl::Time now, Effects& effects);
  // The same: whatever is open ends without effect. The number of the next one.
  std::uint64_t VoidOpen(Effects& effects);
  std::uint64_t number() const { return collectives_.number(); }
  bool waits_for_upstream() const { return collectives_.WaitsForUpstream(); }
  // False: the open collective cannot end without the member.
  bool OnLeave(int rank, Effects& effects);
  // Whether the open collective needs a member that has left.
  MaybeFailure CheckNobodyGone() const;
  // What a member whose stream was replaced has to be told again.
  void Resume(int rank, Effects& effects) const;
  // The session has ended.
  void End();

  // When the open collective began, or the one before it ended; none: none is open.
  std::optional<absl::Time> began() const { return began_; }
  // "" when none is open.
  std::string WaitingFor() const { return collectives_.WaitingFor(); }
  std::size_t held_bytes() const { return collectives_.held_bytes(); }

 private:
  using Sends = std::vector<Collectives::Send>;
  absl::Status Take(int rank, const wire::Frame& frame, Sends& sends);
  // What follows from an event at which collective `number` was open, or the next.
  MaybeFailure Finish(std::uint64_t number, Sends& sends, absl::Time now, Effects& effects);
  void Send(Sends& sends, Effects& effects);
  UpstreamEffect ForUpstream(const wire::Frame& frame) const;

  const SessionOptions& options_;
  const Membership& membership_;
  Collectives collectives_;
  std::optional<absl::Time> began_;
};

}  // namespace gradwire::server

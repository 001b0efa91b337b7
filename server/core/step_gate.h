// Whether a session's next step may go on, or an operator has paused the session.
//
// A pause takes hold between two steps: a step that some member has begun still ends. Then the gate
// is shut: members may announce the buckets of the next step and send its small ones, but nothing
// is granted, reduced or concluded. Every pause has an end, at which the owner lifts it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace gradwire::server {

// Not thread-safe.
class StepGate {
 public:
  // InvalidArgument: a pause is 1 s to 24 h long, and its reason has at most 256 bytes.
  static absl::Status Check(absl::Duration length, const std::string& reason);

  // Replaces the time and the reason of an earlier pause. `open`: a member has begun the step.
  void Pause(absl::Time until, const std::string& reason, bool open);
  // The open step has ended.
  void OnStepEnd() { shut_ = pause_.has_value(); }
  // The pause is over.
  void Lift(absl::Time now);

  bool paused() const { return pause_.has_value(); }
  bool shut() const { return shut_; }
  // The pause has reached its end, so the owner lifts it.
  bool IsDue(absl::Time now) const { return pause_ && now >= pause_->until; }
  absl::Duration Left(absl::Time now) const;
  const std::string& reason() const { return pause_->reason; }  // of a pause, printable

  // How long the step or collective that began then has been open; a pause does not count.
  absl::Duration OpenFor(absl::Time began, absl::Time now) const;
  // "paused by an operator for another 8m12s: REASON"; empty: it is not.
  std::string Sentence(absl::Time now) const;

 private:
  struct Of {
    absl::Time until;
    std::string reason;
  };
  std::optional<Of> pause_;
  bool shut_ = false;
  absl::Time opened_ = absl::InfinitePast();  // when it was shut last, until then
};

}  // namespace gradwire::server

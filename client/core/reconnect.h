// When a member whose stream ended opens the next one, and when it gives up on the daemon.
#pragma once

#include <optional>

#include "base/mutants.h"

namespace gradwire::client {

// A pure state machine: the caller passes the time (std::chrono's or absl's) and opens the streams.
// Not thread-safe.
//
// The first try is immediate; each failed one is followed by a wait of `between_tries`. The member
// gives up `grace` after the first stream ended, which is as long as the daemon waits for it:
// failed tries do not extend that. Only a frame from the daemon does, since a stream that opens and
// ends again proves nothing.
template <class Time, class Duration>
class Reconnect {
 public:
  Reconnect(Duration between_tries, Duration grace)
      : between_tries_(between_tries), grace_(grace) {}

  // A stream ended, or a try to open one failed.
  void OnLost(Time now) {
    next_try_ = lost_at_ ? now + between_tries_ : now;
    if (!lost_at_ || IsActive(Mutant::kRetryExtendsGrace)) lost_at_ = now;
  }
  // A frame arrived on the current stream.
  void OnHeard() { lost_at_.reset(); }

  bool lost() const { return lost_at_.has_value(); }
  Time next_try() const { return next_try_; }
  // Call only if lost().
  Time gives_up_at() const { return *lost_at_ + grace_; }

 private:
  Duration between_tries_;
  Duration grace_;
  std::optional<Time> lost_at_;  // until the daemon is heard again
  Time next_try_{};
};

}  // namespace gradwire::client

// Decides what happens to a session after a fault.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/membership.h"

namespace gradwire::server {

struct FailureEvent {
  enum class Kind : std::uint8_t {
    kViolation,    // `rank` broke the protocol: `what`
    kLost,         // `rank` was lost: `what` says where in the session and why
    kGone,         // `rank` left, and something needs it: `what`
    kWrongJoin,    // the rank that all others wait for asked to join with something else: `what`
    kJoinTimeout,  // not all came in time; `waited` says how long, `what` why, if it is known
    kStepTimeout,  // no result after `waited`: `what` says what is waited for
    kElsewhere,    // another shard's or a leaf's session ended: `what`; `rank` may be -1: nobody
    kOwner,        // the daemon ends the session: `what`; `rank` may be -1
  };
  Kind kind = Kind::kViolation;
  int rank = -1;
  absl::Status what{};
  absl::Duration waited{};
};
// nullopt: no failure.
using MaybeFailure = std::optional<FailureEvent>;

inline FailureEvent ViolationOf(int rank, absl::Status what) {
  return {.kind = FailureEvent::Kind::kViolation, .rank = rank, .what = std::move(what)};
}

// The member left, and `what` (a step, a collective) cannot end without it. The same words whether
// it left before the others began or after: the shards of a session may see either.
FailureEvent LeftBeforeEnd(int rank, const std::string& what);

struct Decision {
  enum class Action : std::uint8_t { kFail };  // for all members alike
  Action action = Action::kFail;
  absl::Status reason;
  int blamed_rank = -1;  // -1: nobody in particular
};

// A pure function: the same event and membership give the same decision. The only policy so far is
// `fail`.
Decision Decide(const FailureEvent& event, const Membership& membership);

}  // namespace gradwire::server

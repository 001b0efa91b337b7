#include "server/core/failure_policy.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"

namespace gradwire::server {
namespace {

ErrorCode CodeOf(FailureEvent::Kind kind) {
  using Kind = FailureEvent::Kind;
  switch (kind) {
    case Kind::kViolation:
      return ErrorCode::kProtocolViolation;
    case Kind::kLost:
      return ErrorCode::kMemberClosed;
    case Kind::kGone:
      return ErrorCode::kMemberLeft;
    case Kind::kWrongJoin:
      return ErrorCode::kJoin;
    case Kind::kJoinTimeout:
      return ErrorCode::kMissingMembers;
    case Kind::kStepTimeout:
      return ErrorCode::kStepTimeout;
    case Kind::kElsewhere:
    case Kind::kOwner:
      break;
  }
  return ErrorCode::kTraining;
}

absl::Status ReasonOf(const FailureEvent& event, const Membership& membership) {
  using Kind = FailureEvent::Kind;
  const std::string what(event.what.message());
  switch (event.kind) {
    case Kind::kViolation:
      return {event.what.code(), absl::StrCat(membership.NameOf(event.rank), ": ", what)};
    case Kind::kLost:
      return {event.what.code(), absl::StrCat(membership.NameOf(event.rank), " was lost ", what)};
    case Kind::kWrongJoin:
      return {event.what.code(),
              absl::StrCat("rank ", event.rank, " asked to join with something else: ", what)};
    case Kind::kJoinTimeout:
      return absl::DeadlineExceededError(absl::StrCat("waited ", absl::FormatDuration(event.waited),
                                                      " for ", membership.MissingNames(),
                                                      " to join", what.empty() ? "" : "; ", what));
    case Kind::kStepTimeout:
      return absl::DeadlineExceededError(
          absl::StrCat("no result after ", absl::FormatDuration(event.waited), ": ", what));
    case Kind::kGone:
    case Kind::kElsewhere:
    case Kind::kOwner:
      return event.what;
  }
  return event.what;
}

}  // namespace

FailureEvent LeftBeforeEnd(int rank, const std::string& what) {
  return {.kind = FailureEvent::Kind::kGone,
          .rank = rank,
          .what = absl::AbortedError(absl::StrCat("rank ", rank, " left before the end of ", what,
                                                  "; its own output says why"))};
}

Decision Decide(const FailureEvent& event, const Membership& membership) {
  int blamed = event.rank;
  if (IsActive(Mutant::kSurvivorBlamed) && event.kind == FailureEvent::Kind::kLost) {
    blamed = (event.rank + 1) % membership.world_size();
  }
  return {.reason = Coded(CodeOf(event.kind), ReasonOf(event, membership)), .blamed_rank = blamed};
}

}  // namespace gradwire::server

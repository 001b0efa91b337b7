// What operators ask of a session.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "proto/wire/rank_names.h"
#include "server/core/collective_flow.h"
#include "server/core/rendezvous.h"
#include "server/core/session_core.h"
#include "server/core/state_recovery.h"
#include "server/core/step.h"
#include "server/core/step_timeline.h"
#include "server/core/waiting_for.h"

namespace gradwire::server {
namespace {

// Of a session that has begun elsewhere, or before, not everybody may join.
std::string WaitsForMissing(const SessionOptions& options, const Membership& membership) {
  const std::string missing = membership.MissingNames();
  if (!options.gathers) return absl::StrCat("waits for ", missing, " to join");
  const bool waits = options.member_grace > absl::ZeroDuration() && !options.shrinks();
  return absl::StrCat("gathers its members: waits for ", missing, " to come back",
                      waits ? ", or for successors" : "");
}

// Nothing else says so while the session goes on.
std::string WithoutGone(const Membership& membership) {
  std::vector<int> gone;
  for (int r = 0; r < membership.world_size(); ++r) {
    if (membership.IsGone(r)) gone.push_back(r);
  }
  if (gone.empty()) return "";
  return absl::StrCat("; goes on without ", wire::RankNames(gone));
}

}  // namespace

absl::Status SessionCore::Pause(absl::Duration length, const std::string& reason, absl::Time now,
                                Effects& effects) {
  if (absl::Status valid = StepGate::Check(length, reason); !valid.ok()) return valid;
  if (state_ != State::kRunning) {
    return Coded(ErrorCode::kNotNow, absl::FailedPreconditionError(absl::StrCat(
                                         "session \"", options_.name, "\" is ", Name(state_),
                                         "; only a running session can be paused")));
  }
  step_->Pause(now + length, reason);
  const StepGate& gate = step_->gate();
  effects.push_back(LogEffect{
      .message = absl::StrCat(gate.Sentence(now), gate.shut() ? "; before step " : "; after step ",
                              step_->number())});
  return absl::OkStatus();
}

absl::Status SessionCore::Unpause(absl::Time now, Effects& effects) {
  if (state_ != State::kRunning || !step_->gate().paused()) {
    return Coded(ErrorCode::kNotNow,
                 absl::FailedPreconditionError(absl::StrCat("session \"", options_.name, "\" is ",
                                                            Name(state_), ", and not paused")));
  }
  EndPause("resumed by an operator", now, effects);
  return absl::OkStatus();
}

void SessionCore::EndPause(const std::string& why, absl::Time now, Effects& effects) {
  effects.push_back(
      LogEffect{.message = absl::StrCat(why, "; it goes on with step ", step_->number())});
  waits_.OnUnpaused(now);
  step_->Unpause(now, effects);
}

absl::Status SessionCore::BeginTimeline(int steps, absl::Time deadline, absl::Time now) {
  if (steps < 1 || steps > StepTimeline::kMostSteps) {
    return Coded(ErrorCode::kCtlUsage,
                 absl::InvalidArgumentError(absl::StrCat("steps is ", steps, "; allowed are 1 to ",
                                                         StepTimeline::kMostSteps)));
  }
  if (state_ == State::kFailed) return absl::FailedPreconditionError(failure_.message());
  if (state_ == State::kClosed) {
    return Coded(ErrorCode::kNotNow,
                 absl::FailedPreconditionError(absl::StrCat(
                     "session \"", options_.name, "\" has ended: all members have left")));
  }
  if (timeline_ != nullptr) {
    return Coded(ErrorCode::kNotNow,
                 absl::AlreadyExistsError(absl::StrCat("session \"", options_.name,
                                                       "\" is being traced already; try again when "
                                                       "that trace has ended")));
  }
  // Of a step that has begun, some part would be missing.
  timeline_ = std::make_unique<StepTimeline>(
      StepTimeline::Options{.first_step = step_->number() + (step_->began() ? 1 : 0),
                            .steps = steps,
                            .world_size = options_.world_size,
                            .deadline = deadline},
      now);
  return absl::OkStatus();
}

std::string SessionCore::WaitingFor(absl::Time now) const {
  switch (state_) {
    case State::kJoining:
      if (const std::string claim = rendezvous_->ClaimWaits(); !claim.empty()) {
        if (membership_.AllConnected()) return claim;
        return absl::StrCat(WaitsForMissing(options_, membership_), "; ", claim);
      }
      if (membership_.AllConnected() && state_recovery_ != nullptr) {
        return state_recovery_->WaitingFor();
      }
      if (membership_.AllConnected()) {
        const std::string waits =
            absl::StrCat("waits for the upstream daemon at ", options_.leaf.upstream);
        return upstream_waits_.empty()
                   ? absl::StrCat(waits, ", where members of other nodes are missing")
                   : absl::StrCat(waits, ": ", upstream_waits_);
      }
      return WaitsForMissing(options_, membership_);
    case State::kFailed:
      return std::string(failure_.message());
    case State::kClosed:
      return awaits_successor_ ? "gathers its members again" : "ended: all members have left";
    case State::kRunning:
      break;
  }
  return absl::StrCat(server::WaitingFor(*step_, *collectives_, membership_, now),
                      WithoutGone(membership_));
}

}  // namespace gradwire::server

#include "server/core/session_core.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/mutants.h"
#include "server/core/collective_flow.h"
#include "server/core/draw_plan_intake.h"
#include "server/core/generation.h"
#include "server/core/step.h"
#include "server/core/waiting_for.h"

namespace gradwire::server {

SessionCore::SessionCore(SessionOptions options, std::unique_ptr<CoordinatorHook> hook,
                         absl::Time now)
    : options_(std::move(options)),
      hook_state_(std::move(hook), options_.name),
      created_(now),
      membership_(options_.world_size,
                  {.token_timeout = options_.token_timeout,
                   .resume_grace = options_.resume_grace,
                   .silence_timeout = options_.silence_timeout},
                  now),
      step_(std::make_unique<Step>(options_, membership_, hook_state_.hook())),
      collectives_(std::make_unique<CollectiveFlow>(options_, membership_)),
      draw_plan_(std::make_unique<DrawPlanIntake>(hook_state_.hook(), options_.manifest.size())) {}

SessionCore::~SessionCore() = default;

std::int64_t SessionCore::step() const { return step_->number(); }

std::size_t SessionCore::held_bytes() const {
  return collectives_->held_bytes() + step_->held_bytes();
}

// ---- Members come

void SessionCore::FailWrongJoin(const JoinAsk& ask, const absl::Status& difference,
                                Effects& effects) {
  // The member that the others wait for: they would wait in vain.
  if (state_ == State::kJoining && membership_.IsRank(ask.rank) &&
      ask.world_size == options_.world_size &&
      membership_.state(ask.rank) == MemberState::kAbsent) {
    Apply(
        FailureEvent{.kind = FailureEvent::Kind::kWrongJoin, .rank = ask.rank, .what = difference},
        effects);
  }
}

absl::StatusOr<int> SessionCore::Join(const JoinAsk& ask, const absl::Status& same, absl::Time now,
                                      Effects& effects) {
  if (state_ == State::kFailed) return failure_;
  if (!same.ok()) {
    FailWrongJoin(ask, same, effects);
    return same;
  }
  const auto place = membership_.Join(ask.rank, ask.start_id, options_.name, now);
  if (!place.ok()) return place.status();
  if (place->fresh) {
    effects.push_back(LogEffect{.message = absl::StrCat("rank ", place->rank, " joined")});
  }
  return place->rank;
}

absl::Status SessionCore::Attach(int rank, std::uint64_t start_id, std::int64_t step,
                                 std::uint64_t connection, absl::Time now, Effects& effects) {
  if (state_ == State::kFailed) return failure_;
  if (absl::Status status = membership_.CheckAttach(rank, start_id); !status.ok()) return status;
  if (absl::Status status = step_->CheckResumable(step); !status.ok()) return status;
  if (const auto replaced = membership_.Attach(rank, connection, now)) {
    effects.push_back(CloseEffect{.rank = rank, .connection = *replaced});
  }
  if (state_ == State::kRunning) {
    Resume(rank, step, effects);
  } else if (membership_.AllConnected()) {
    StartRunning(effects);
  }
  return absl::OkStatus();
}

void SessionCore::StartRunning(Effects& effects) {
  state_ = State::kRunning;
  effects.push_back(
      LogEffect{.message = absl::StrCat("all ", options_.world_size, " members are here")});
  effects.push_back(FanOutEffect{
      .ranks = membership_.Reachable(),
      .frame = {.header = wire::Welcome{.step = step_->number(), .attempt = step_->attempt()}}});
}

void SessionCore::Resume(int rank, std::int64_t member_step, Effects& effects) {
  step_->Resume(rank, member_step, effects);
  collectives_->Resume(rank, effects);
  step_->GrantNext(effects);
}

// ---- Frames

void SessionCore::Receive(int rank, std::uint64_t connection, const wire::Frame& frame,
                          absl::Time now, Effects& effects) {
  if (state_ == State::kFailed || !membership_.Hear(rank, connection, now)) return;
  if (std::holds_alternative<wire::Heartbeat>(frame.header)) return;
  if (state_ != State::kRunning) {
    return Apply(
        ViolationOf(rank, absl::FailedPreconditionError("sent a frame before its Welcome")),
        effects);
  }
  Apply(Dispatch(rank, frame, now, effects), effects);
}

MaybeFailure SessionCore::Dispatch(int rank, const wire::Frame& frame, absl::Time now,
                                   Effects& effects) {
  if (absl::Status status = CheckGeneration(frame.header, options_.generation); !status.ok()) {
    return ViolationOf(rank, std::move(status));
  }
  if (const auto* contribution = std::get_if<wire::Contribution>(&frame.header)) {
    return step_->OnContribution(rank, *contribution, frame.payload, effects);
  }
  if (const auto* ack = std::get_if<wire::Ack>(&frame.header)) {
    return step_->OnAck(rank, *ack, effects);
  }
  if (const auto* announce = std::get_if<wire::Announce>(&frame.header)) {
    return step_->OnAnnounce(rank, *announce, frame.payload, now, effects);
  }
  if (const auto* end = std::get_if<wire::EndStep>(&frame.header)) {
    return step_->OnEndStep(rank, *end, now, effects);
  }
  if (const auto* report = std::get_if<wire::BucketReport>(&frame.header)) {
    absl::Status taken = step_->reports().Take(rank, *report);
    if (taken.ok()) return std::nullopt;
    return ViolationOf(rank, std::move(taken));
  }
  if (const auto* plan = std::get_if<wire::DrawPlan>(&frame.header)) {
    return draw_plan_->On(rank, *plan, effects);
  }
  return collectives_->OnFrame(rank, frame, now, effects);
}

void SessionCore::Reduced(const wire::RoundId& id, std::uint32_t chunk, const ResultRef& result,
                          bool finite, absl::Duration spent, Effects& effects) {
  if (state_ == State::kRunning) step_->OnReduced(id, chunk, result, finite, spent, effects);
}

void SessionCore::Computed(const wire::RoundId& id, SharedStateWork& work, Effects& effects) {
  if (state_ == State::kRunning) step_->OnComputed(id, work, effects);
}

void SessionCore::ChoreDone(Effects& effects) {
  if (state_ == State::kRunning) step_->OnChoreDone(effects);
}

// ---- Members go

void SessionCore::Detach(int rank, std::uint64_t connection, absl::Time now, Effects& effects) {
  if (!membership_.Detach(rank, connection, now)) return;
  if (state_ == State::kClosed) return;
  effects.push_back(LogEffect{
      .level = LogEffect::Level::kWarning,
      .message = absl::StrCat("rank ", rank, "'s stream ended; it has ",
                              absl::FormatDuration(options_.resume_grace), " to resume")});
  if (IsActive(Mutant::kMemberDroppedPerBucket)) step_->ReduceWithoutLost(effects);
}

absl::Status SessionCore::Leave(int rank, std::uint64_t start_id, absl::Time now,
                                Effects& effects) {
  if (!membership_.IsHeldBy(rank, start_id)) {
    return absl::NotFoundError(absl::StrCat("rank ", rank, " is not held by this process"));
  }
  if (membership_.state(rank) == MemberState::kLeft || state_ == State::kFailed) {
    return absl::OkStatus();
  }
  const CloseEffect close{.rank = rank, .connection = membership_.connection(rank)};
  if (state_ == State::kJoining) {
    effects.push_back(close);
    last_departure_ = absl::StrCat("rank ", rank, " left");
    membership_.Free(rank);
    return absl::OkStatus();
  }
  const auto fail = [&](const std::string& where) {
    Apply(FailureEvent{.kind = FailureEvent::Kind::kGone,
                       .rank = rank,
                       .what = absl::AbortedError(
                           absl::StrCat("rank ", rank, " left in the middle of ", where))},
          effects);
    return absl::OkStatus();
  };
  if (step_->began()) return fail(absl::StrCat("step ", step_->number()));
  if (!collectives_->OnLeave(rank, effects)) return fail("a collective");
  // Others may have entered the next one early, which one that left before cannot.
  Apply(collectives_->CheckNobodyGone(rank), effects);
  membership_.Leave(rank, now);
  effects.push_back(
      LogEffect{.message = absl::StrCat("rank ", rank, " left after ", step_->number(), " steps")});
  effects.push_back(close);
  step_->Leave(rank, effects);
  if (membership_.AllLeft()) {
    state_ = State::kClosed;
    step_->End();
  }
  return absl::OkStatus();
}

// ---- Time

void SessionCore::Tick(absl::Time now, Effects& effects) {
  membership_.Tick(now);
  if (state_ == State::kJoining) {
    for (const Membership::Freed& freed : membership_.FreeGone(now)) {
      last_departure_ = freed.why;
      effects.push_back(LogEffect{
          .level = LogEffect::Level::kWarning,
          .message = absl::StrCat("rank ", freed.rank, " is free again: ", freed.why,
                                  " before all ", options_.world_size, " members had joined")});
      if (freed.connection) {
        effects.push_back(CloseEffect{.rank = freed.rank, .connection = *freed.connection});
      }
    }
  }
  Apply(FindTimeout(now), effects);
}

MaybeFailure SessionCore::FindTimeout(absl::Time now) const {
  using Kind = FailureEvent::Kind;
  if (state_ == State::kJoining && now - created_ > options_.join_timeout) {
    return FailureEvent{.kind = Kind::kJoinTimeout, .waited = options_.join_timeout};
  }
  if (state_ != State::kRunning) return std::nullopt;
  if (const auto loss = membership_.FindLoss(now)) {
    const std::string where =
        absl::StrCat(step_->began() ? "in" : "before", " step ", step_->number(), ": ", loss->why);
    return FailureEvent{.kind = Kind::kLost, .rank = loss->rank, .what = absl::AbortedError(where)};
  }
  const auto overdue = [&](const std::optional<absl::Time>& began) {
    return began && now - *began > options_.step_timeout;
  };
  if (!overdue(step_->began()) && !overdue(collectives_->began())) return std::nullopt;
  return FailureEvent{.kind = Kind::kStepTimeout,
                      .what = absl::DeadlineExceededError(WaitingFor(now)),
                      .waited = options_.step_timeout};
}

// ---- The end

void SessionCore::Apply(const MaybeFailure& failure, Effects& effects) {
  if (!failure || state_ == State::kFailed || state_ == State::kClosed) return;
  const Decision decision = Decide(*failure, membership_);
  failure_ = absl::Status(
      decision.reason.code(),
      absl::StrCat("session \"", options_.name, "\" failed: ", decision.reason.message()));
  const std::string message(failure_.message());
  effects.push_back(LogEffect{.level = LogEffect::Level::kWarning, .message = message});
  effects.push_back(
      FanOutEffect{.ranks = membership_.Reachable(),
                   .frame = {.header = wire::Failure{.code = static_cast<int>(failure_.code()),
                                                     .message = message,
                                                     .blamed_rank = decision.blamed_rank}}});
  state_ = State::kFailed;
  for (const int r : membership_.Reachable()) {
    effects.push_back(CloseEffect{.rank = r, .connection = membership_.connection(r)});
  }
  membership_.End();
  if (failure->kind == FailureEvent::Kind::kLost) membership_.Lose(failure->rank);
  step_->End();
  collectives_->End();
}

void SessionCore::Fail(const absl::Status& status, int blamed_rank, Effects& effects) {
  Apply(FailureEvent{.kind = FailureEvent::Kind::kOwner, .rank = blamed_rank, .what = status},
        effects);
}

// ---- The hook's state

absl::Status SessionCore::CheckImport() const {
  if (absl::Status status = CheckHasState(); !status.ok()) return status;
  if (step_->began()) {
    return absl::FailedPreconditionError(absl::StrCat("session \"", options_.name,
                                                      "\" is in the middle of step ",
                                                      step_->number(), "; try between two steps"));
  }
  if (state_ != State::kRunning) {  // members that join later would not hear of it
    return absl::FailedPreconditionError(absl::StrCat(
        "session \"", options_.name, "\" is ", Name(state_), "; a state goes into a running one"));
  }
  return absl::OkStatus();
}

absl::Status SessionCore::CheckHasState() const {
  if (state_ == State::kFailed) return failure_;
  return hook_state_.CheckIsThere();
}

absl::StatusOr<StateSnapshot> SessionCore::Export() const {
  if (absl::Status status = CheckHasState(); !status.ok()) return status;
  return hook_state_.Export(step_->number());
}

absl::Status SessionCore::Install(HookImport& import, Effects& effects) {
  if (absl::Status status = CheckImport(); !status.ok()) return status;
  hook_state_.Install(import);
  step_->ReplaceState();
  effects.push_back(
      FanOutEffect{.ranks = membership_.Reachable(),
                   .frame = {.header = wire::StateReset{.iteration = hook_state_.iteration()}}});
  return absl::OkStatus();
}

std::string SessionCore::WaitingFor(absl::Time now) const {
  switch (state_) {
    case State::kJoining:
      return absl::StrCat("waits for ", membership_.MissingNames(), " to join");
    case State::kFailed:
      return std::string(failure_.message());
    case State::kClosed:
      return "ended: all members have left";
    case State::kRunning:
      break;
  }
  const std::string collective = collectives_->WaitingFor();
  return collective.empty() ? server::WaitingFor(*step_, membership_, now) : collective;
}

}  // namespace gradwire::server

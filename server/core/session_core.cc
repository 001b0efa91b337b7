#include "server/core/session_core.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/mutants.h"
#include "server/core/collective_flow.h"
#include "server/core/draw_plan_intake.h"
#include "server/core/generation.h"
#include "server/core/hand_over_relay.h"
#include "server/core/rendezvous.h"
#include "server/core/state_recovery.h"
#include "server/core/step.h"
#include "server/core/timeouts.h"

namespace gradwire::server {

SessionCore::SessionCore(SessionOptions options, std::unique_ptr<CoordinatorHook> hook,
                         absl::Time now)
    : options_(std::move(options)),
      hook_state_(std::move(hook), options_.name, options_.shard),
      membership_(options_.world_size,
                  {.token_timeout = options_.token_timeout,
                   .resume_grace = options_.resume_grace + options_.shard.patience(),
                   .silence_timeout = options_.silence_timeout + options_.shard.patience()},
                  now),
      rendezvous_(std::make_unique<Rendezvous>(options_, membership_, now)),
      step_(std::make_unique<Step>(options_, membership_, hook_state_.hook())),
      collectives_(std::make_unique<CollectiveFlow>(options_, membership_)),
      draw_plan_(std::make_unique<DrawPlanIntake>(hook_state_.hook(), options_.manifest.size())),
      hand_overs_(std::make_unique<HandOverRelay>(membership_, options_.chunk_bytes)),
      waits_(options_.world_size),
      node_groups_(options_.node_groups),
      leavers_(membership_, options_.resume_grace) {
  if (const std::size_t file = StateFileBytes(hook_state_.hook(), options_.manifest);
      options_.gathers && file > 0) {
    state_recovery_ = std::make_unique<StateRecovery>(options_.world_size, file);
  }
  if (!options_.leaf.is_leaf()) return;
  const int end = options_.leaf.first + options_.leaf.members;
  membership_.SetElsewhere(0, options_.leaf.first);
  membership_.SetElsewhere(end, options_.world_size - end);
}

SessionCore::~SessionCore() = default;

std::int64_t SessionCore::step() const { return step_->number(); }

std::vector<int> SessionCore::LedgerSilent() const { return step_->ledger().Silent(membership_); }

const std::string& SessionCore::last_departure() const { return rendezvous_->last_departure(); }

std::size_t SessionCore::held_bytes() const {
  return collectives_->held_bytes() + step_->held_bytes();
}

// ---- Members come

absl::StatusOr<int> SessionCore::Join(const JoinAsk& ask, const absl::Status& same, absl::Time now,
                                      Effects& effects) {
  if (state_ == State::kFailed) return failure_;
  if (same.ok() && state_ != State::kClosed && rendezvous_->IsOver(ask)) {
    GatherAgain(-1, effects);
    return absl::UnavailableError(
        absl::StrCat("session \"", options_.name, "\" gathers its members again; try again"));
  }
  const absl::Status fits = same.ok() ? rendezvous_->CheckReport(ask) : same;
  if (fits.ok() && ComesBack(ask)) {
    GatherAgain(-1, effects);
    return absl::UnavailableError(
        absl::StrCat("session \"", options_.name, "\" gathers its members again; try again"));
  }
  if (fits.ok()) {
    absl::StatusOr<int> rank = rendezvous_->Join(ask, now, effects);
    return rank.ok() ? rank : AskAgain(ask, rank.status(), effects);
  }
  const bool may_fit = absl::IsUnavailable(fits);  // later
  if (state_ == State::kJoining && !may_fit) Apply(rendezvous_->OnWrongJoin(ask, fits), effects);
  return fits;
}

bool SessionCore::HasPlace(std::uint64_t start_id) const { return membership_.HasPlace(start_id); }

absl::Status SessionCore::Attach(int rank, std::uint64_t start_id, std::int64_t step,
                                 std::uint64_t connection, absl::Time now, Effects& effects,
                                 const Abilities& abilities) {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (absl::Status status = membership_.CheckAttach(rank, start_id); !status.ok()) return status;
  // Where members are gathered, their reports say where the session is.
  if (state_ == State::kJoining && state_recovery_ != nullptr)
    state_recovery_->OnAttach(rank, step);
  const auto newcomer = newcomers_.find(rank);
  if (newcomer != newcomers_.end()) {
    step = step_->number();
  } else if (state_ != State::kJoining || !options_.gathers) {
    if (absl::Status status = step_->CheckResumable(step); !status.ok()) return status;
  }
  if (newcomer == newcomers_.end()) leavers_.Hear(rank, step);
  step_->late().SetMayMiss(rank, abilities.may_miss);
  if (const auto replaced = membership_.Attach(rank, connection, now)) {
    effects.push_back(CloseEffect{.rank = rank, .connection = *replaced});
  }
  membership_.SetAbilities(rank, abilities);
  if (state_ == State::kRunning) {
    const std::size_t first = effects.size();
    step_->Resume(rank, step,
                  newcomer == newcomers_.end() ? std::nullopt : std::optional(newcomer->second),
                  effects);
    collectives_->Resume(rank, effects);
    hand_overs_->OnAttached(rank, effects);
    step_->GrantNext(effects);
    if (timeline_ != nullptr) {
      timeline_->Advance(now);
      timeline_->OnResumed(rank);
      Record(effects, first);
    }
  } else {
    MaybeBegin(rank, effects);
    MaybeShrink(now, effects);
  }
  return absl::OkStatus();
}

// ---- Frames

void SessionCore::Receive(int rank, std::uint64_t connection, const wire::Frame& frame,
                          absl::Time now, Effects& effects) {
  if (state_ == State::kFailed || !membership_.Hear(rank, connection, now)) return;
  if (const auto* heartbeat = std::get_if<wire::Heartbeat>(&frame.header)) {
    leavers_.Hear(rank, heartbeat->step);
    return LetLeaversGo(now, effects);
  }
  if (state_ != State::kRunning) return ReceiveEarly(rank, frame, effects);
  if (std::holds_alternative<wire::Announce>(frame.header)) leavers_.Remove(rank);  // it goes on
  newcomers_.erase(rank);
  const std::int64_t step = step_->number();
  const std::size_t first = effects.size();
  const std::uint64_t bytes = step_->flow().member_bytes(rank);
  Apply(Dispatch(rank, frame, now, effects), effects);
  if (step_->number() == step) {
    waits_.OnFrame(rank, frame.header, now);
  } else {
    LetLeave(now, effects);
    MaybeTakeIn(effects);
  }
  if (timeline_ == nullptr || state_ != State::kRunning) return;
  timeline_->OnFrame(rank, frame.header, step_->flow().member_bytes(rank) - bytes);
  Record(effects, first);
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
  if (const auto* bucket = std::get_if<wire::GroupBucket>(&frame.header)) {
    return step_->OnGroupBucket(rank, *bucket, now, effects);
  }
  if (const auto* id = std::get_if<wire::GroupId>(&frame.header)) {
    return step_->OnGroupId(rank, *id, effects);
  }
  if (const auto* end = std::get_if<wire::EndStep>(&frame.header)) {
    return step_->OnEndStep(rank, *end, now, effects);
  }
  if (const auto* digest = std::get_if<wire::ParameterDigest>(&frame.header)) {
    return step_->OnParameterDigest(rank, *digest, effects);
  }
  if (const auto* account = std::get_if<wire::LedgerAccount>(&frame.header)) {
    return step_->OnLedgerAccount(rank, *account, effects);
  }
  if (const auto* ready = std::get_if<wire::Ready>(&frame.header)) {
    return step_->OnReady(rank, *ready, effects);
  }
  if (const auto* concluded = std::get_if<wire::Concluded>(&frame.header)) {
    return step_->OnConcluded(rank, *concluded, effects);
  }
  if (const auto* failure = std::get_if<wire::Failure>(&frame.header)) {
    return OnFailureElsewhere(rank, *failure, effects);
  }
  if (const auto* again = std::get_if<wire::GatherAgain>(&frame.header)) {
    return OnGatherAgain(rank, *again, effects);
  }
  if (const auto* piece = std::get_if<wire::HandOver>(&frame.header)) {
    return OnHandOver(rank, *piece, frame.payload, effects);
  }
  if (const auto* answer = std::get_if<wire::HandOverAnswer>(&frame.header)) {
    return OnHandOverAnswer(rank, *answer, effects);
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
                          const ReduceOutcome& outcome, absl::Duration spent, Effects& effects) {
  if (state_ != State::kRunning) return;
  const std::size_t first = effects.size();
  step_->OnReduced(id, chunk, result, outcome, spent, effects);
  if (timeline_ != nullptr) timeline_->OnReduced(id, spent);
  Record(effects, first);
}

void SessionCore::Computed(const wire::RoundId& id, SharedStateWork& work, Effects& effects) {
  if (state_ != State::kRunning) return;
  const std::size_t first = effects.size();
  step_->OnComputed(id, work, effects);
  Record(effects, first);
}

void SessionCore::ChoreDone(Effects& effects) {
  if (state_ == State::kRunning) step_->OnChoreDone(effects);
}

// ---- Members go

void SessionCore::Detach(int rank, std::uint64_t connection, absl::Time now, Effects& effects) {
  if (!membership_.Detach(rank, connection, now)) return;
  if (state_ == State::kClosed) return;
  if (timeline_ != nullptr) {
    timeline_->Advance(now);
    timeline_->OnBroken(rank);
  }
  effects.push_back(
      LogEffect{.level = LogEffect::Level::kWarning,
                .message = absl::StrCat("rank ", rank, "'s stream ended; it has ",
                                        absl::FormatDuration(options_.resume_grace), " to resume"),
                .rank = rank});
  // Others will say what it cannot say any more.
  if (leaving_.erase(rank) > 0 && state_ == State::kRunning) LeaveRunning(rank, now, effects);
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
  if (state_ == State::kClosed && awaits_successor_) {
    LeaveRunning(rank, now, effects);
  } else if (state_ == State::kClosed && step_->outlives_daemon() &&
             membership_.Staying().size() > 1) {
    return CheckOpen();  // the next daemon may need what it knows of the last step
  } else if (state_ == State::kJoining) {
    rendezvous_->Leave(rank, effects);
  } else if (step_->AwaitsConclusion() && membership_.state(rank) == MemberState::kConnected) {
    leaving_.insert(rank);  // this call has overtaken what the member says on its stream
  } else if (step_->began() && !step_->AwaitsConclusion()) {
    // All ranks contribute to a step, so the step that has begun cannot end without this one.
    Apply(LeftBeforeEnd(rank, absl::StrCat("step ", step_->number())), effects);
  } else if (!collectives_->OnLeave(rank, effects)) {
    Apply(LeftBeforeEnd(rank, "a collective"), effects);
  } else if (state_ == State::kRunning && step_->outlives_daemon() && !options_.follows()) {
    return AskToLeave(rank, now, effects);
  } else {
    LeaveRunning(rank, now, effects);
  }
  return absl::OkStatus();
}

// Shard 0 decides about steps, so only it knows more than members may have heard.
absl::Status SessionCore::AskToLeave(int rank, absl::Time now, Effects& effects) {
  const std::int64_t step = step_->number();
  leavers_.Add(rank, step, now);
  LetLeaversGo(now, effects);
  if (state_ != State::kRunning || membership_.state(rank) == MemberState::kLeft) {
    return absl::OkStatus();
  }
  for (const int other : leavers_.ToAsk(step, now)) {
    effects.push_back(
        SendEffect{.rank = other, .frame = {.header = wire::Heartbeat{.asks = true}}});
  }
  return leavers_.NotYet(step);
}

void SessionCore::LetLeaversGo(absl::Time now, Effects& effects) {
  if (!leavers_.any()) return;
  for (const int rank : leavers_.Ready(step_->number(), now)) {
    // Others may have begun something since, that cannot end without it.
    const bool may =
        state_ == State::kRunning && !step_->began() && collectives_->OnLeave(rank, effects);
    if (!may) continue;
    leavers_.Remove(rank);
    LeaveRunning(rank, now, effects);
  }
}

// They are not to be held up, and their streams are not to end with an error, because another
// member is lost.
void SessionCore::LetAllLeaversGo(int lost, Effects& effects) {
  leavers_.Remove(lost);
  for (const auto& [rank, since] : leavers_.TakeAll()) {
    if (state_ == State::kRunning) LeaveRunning(rank, since, effects);
  }
}

// The step is concluded, so that it needs none of them any more.
void SessionCore::LetLeave(absl::Time now, Effects& effects) {
  for (const int rank : std::exchange(leaving_, {})) {
    if (state_ == State::kRunning) LeaveRunning(rank, now, effects);
  }
}

void SessionCore::LeaveRunning(int rank, absl::Time now, Effects& effects) {
  const CloseEffect close{.rank = rank, .connection = membership_.connection(rank)};
  // Its departure may have ended a broadcast: the next collective cannot be entered by a rank that
  // left earlier.
  Apply(collectives_->CheckNobodyGone(), effects);
  if (awaits_successor_) {  // the others gather without it
    effects.push_back(DepartureEffect{.rank = rank});
    for (int r = rank; r < rank + membership_.ranks(rank); ++r) {
      if (std::ranges::count(gone_, r) == 0) gone_.push_back(r);
    }
    return;
  }
  membership_.Leave(rank, now);
  hand_overs_->OnGone(rank, effects);
  effects.push_back(
      LogEffect{.message = absl::StrCat("rank ", rank, " left after ", step_->number(), " steps"),
                .rank = rank});
  effects.push_back(close);
  effects.push_back(DepartureEffect{.rank = rank});
  step_->Leave(rank, effects);
  if (membership_.AllLeft()) {
    state_ = State::kClosed;
    step_->End();
    if (options_.claims()) effects.push_back(ForgetRostersEffect{.lineage = options_.lineage});
  }
}

// ---- Time

void SessionCore::Observe(absl::Time now) {
  if (timeline_ != nullptr) timeline_->Advance(now);
  if (state_ == State::kRunning) waits_.Observe(*step_, membership_, now);
  step_->late().Observe(now);
}

void SessionCore::Record(const Effects& effects, std::size_t first) {
  if (timeline_ == nullptr) return;
  for (std::size_t i = first; i < effects.size(); ++i) {
    const Effect& effect = effects[i];
    if (const auto* send = std::get_if<SendEffect>(&effect)) timeline_->OnEffect(*send);
    if (const auto* fan_out = std::get_if<FanOutEffect>(&effect)) timeline_->OnEffect(*fan_out);
    if (const auto* reduce = std::get_if<ReduceEffect>(&effect)) timeline_->OnEffect(*reduce);
    if (const auto* result = std::get_if<ResultEffect>(&effect)) timeline_->OnEffect(*result);
  }
}

void SessionCore::Tick(absl::Time now, Effects& effects) {
  membership_.Tick(now);
  if (state_ == State::kRunning && step_->gate().IsDue(now)) {
    EndPause("the pause is over", now, effects);
  }
  if (state_ == State::kJoining) {
    Apply(rendezvous_->Tick(now, effects), effects);
    MaybeShrink(now, effects);
    if (state_recovery_ != nullptr) {
      Apply(state_recovery_->Tick(now, options_.join_timeout), effects);
    }
  }
  LetLeaversGo(now, effects);
  if (state_ == State::kRunning) {
    const MaybeFailure failure = FindTimeout(options_, membership_, *step_, *collectives_, now);
    if (failure) LetAllLeaversGo(failure->rank, effects);
    const bool replaces = failure && state_ == State::kRunning && MayReplace(*failure);
    replaces ? AwaitSuccessor(*failure, effects) : Apply(failure, effects);
  }
  if (state_ == State::kRunning) {
    const std::size_t first = effects.size();
    step_->Tick(now, effects);
    Record(effects, first);
  }
}

// ---- What it waits for

}  // namespace gradwire::server

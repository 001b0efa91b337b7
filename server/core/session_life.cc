// How a session begins, goes on after the loss of its daemon, and ends.
#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "proto/wire/rank_names.h"
#include "server/core/collective_flow.h"
#include "server/core/generation.h"
#include "server/core/rendezvous.h"
#include "server/core/send_failure.h"
#include "server/core/session_core.h"
#include "server/core/state_recovery.h"
#include "server/core/step.h"

namespace gradwire::server {

// A leaf's members are welcomed when the root's session has begun too.
void SessionCore::MaybeBegin(int rank, Effects& effects) {
  if (!membership_.AllConnected()) return;
  if (options_.leaf.is_leaf() && !std::exchange(upstream_asked_, true)) {
    effects.push_back(UpstreamEffect{.what = UpstreamEffect::What::kJoin});
  }
  if (options_.leaf.is_leaf() && !upstream_welcome_) return;
  // The failure goes to all that are connected. Who came last is to blame only where they begin.
  const auto fail = [&](const absl::Status& what) {
    const int blamed = options_.gathers ? -1 : rank;
    Apply(FailureEvent{.kind = FailureEvent::Kind::kOwner, .rank = blamed, .what = what}, effects);
  };
  if (!MayGoOn(effects) || DismissMisfits(effects)) return;
  absl::StatusOr<NodeGroups> groups = rendezvous_->Group();
  if (!groups.ok()) return fail(groups.status());
  auto gathered = rendezvous_->Gathered(*groups);
  if (!gathered.ok()) return fail(gathered.status());
  if (absl::Status may = CheckLeavesGoOn(*gathered); !may.ok()) return fail(may);
  if (*gathered && DismissMisplaced(*groups, **gathered, effects)) return;
  if (!*gathered && state_recovery_ != nullptr && state_recovery_->restored()) {
    return fail(Coded(ErrorCode::kResume,
                      absl::FailedPreconditionError("all members that had the session's model are "
                                                    "lost; begin again from a checkpoint")));
  }
  const Rendezvous::Claimed claimed = rendezvous_->Claim(*gathered, effects);
  if (claimed == Rendezvous::Claimed::kAgain) return MaybeBegin(rank, effects);
  if (claimed == Rendezvous::Claimed::kNo) return;
  if (state_recovery_ != nullptr && *gathered && !state_recovery_->restored()) {
    rendezvous_->Tell(**gathered);
    return state_recovery_->Ask(**gathered, effects);
  }
  state_ = State::kRunning;
  wire::Welcome welcome{.recovery = NewRecovery()};
  if (welcome.recovery && options_.shrinks()) {
    welcome.recovery->roster = *gathered ? (*gathered)->roster
                                         : wire::Roster{.number = rendezvous_->first_number(),
                                                        .ranks = membership_.Present()};
  }
  if (welcome.recovery && options_.shard.count() > 1) {
    const std::uint64_t begun = *gathered ? (*gathered)->life + options_.life : 1;
    const bool is_told = options_.follows() && options_.life > 0;
    welcome.recovery->life = is_told ? options_.life : begun;
  }
  if (welcome.recovery) step_->Outlive(*welcome.recovery);
  if (*gathered) GoOn(**gathered, effects);
  if (upstream_welcome_) GoOnFromUpstream();
  welcome.step = step_->number();
  welcome.recovery = step_->RecoveryAt(welcome.step);
  welcome.attempt = step_->attempt();
  rendezvous_->Complete(*groups, welcome, newcomers_, effects);
  if (!options_.shrinks() && !groups->has_leaves()) node_groups_ = groups->Firsts();
  step_->SetGroups(*std::move(groups));
  collectives_->Begin();
}

// With the other daemons a step's first buckets may come before a further roster's weights.
absl::Status SessionCore::CheckLeavesGoOn(const std::optional<Gathering::Outcome>& gathered) const {
  if (!gathered || !membership_.HasLeaves() || !options_.shrinks()) return absl::OkStatus();
  if (options_.shard.count() == 1) return absl::OkStatus();
  return Coded(ErrorCode::kResume,
               absl::FailedPreconditionError(
                   "the next daemon has on_member_loss=shrink, and the session has leaf daemons "
                   "and several daemons; begin again from a checkpoint, or allowed: wait, fail"));
}

// Another shard may fail while this one still waits for members.
void SessionCore::ReceiveEarly(int rank, const wire::Frame& frame, Effects& effects) {
  if (const auto* elsewhere = std::get_if<wire::Failure>(&frame.header)) {
    return Apply(OnFailureElsewhere(rank, *elsewhere, effects), effects);
  }
  absl::Status status = CheckGeneration(frame.header, options_.generation);
  if (const auto* again = std::get_if<wire::GatherAgain>(&frame.header); again && status.ok()) {
    return Apply(OnGatherAgain(rank, *again, effects), effects);
  }
  const auto* copy = std::get_if<wire::StateCopy>(&frame.header);
  if (status.ok() && copy != nullptr && state_recovery_ != nullptr) {
    return Apply(state_recovery_->Take(rank, *copy, frame.payload.get(), effects), effects);
  }
  if (status.ok()) status = absl::FailedPreconditionError("sent a frame before its Welcome");
  Apply(ViolationOf(rank, std::move(status)), effects);
}

void SessionCore::Restored(const absl::StatusOr<std::shared_ptr<HookImport>>& state,
                           Effects& effects) {
  if (state_ != State::kJoining) return;
  if (!state.ok()) {
    return Apply(FailureEvent{.kind = FailureEvent::Kind::kOwner,
                              .what = absl::Status(state.status().code(),
                                                   absl::StrCat("what its members hold of the "
                                                                "hook's state is not one: ",
                                                                state.status().message()))},
                 effects);
  }
  if (!IsActive(Mutant::kStateNotTakenBack)) hook_state_.Restore(**state);
  step_->Restored();
  state_recovery_->Restored();
  MaybeBegin(-1, effects);
}

// None where a fresh daemon would lack something: the weights of those who are left at each of
// several daemons.
std::optional<wire::Recovery> SessionCore::NewRecovery() const {
  const bool has_leaves = membership_.HasLeaves() && options_.shard.count() > 1;
  const bool may_shrink = options_.shrinks() && has_leaves;
  if (options_.coordinator_grace <= absl::ZeroDuration() || options_.leaf.is_leaf() || may_shrink) {
    return std::nullopt;
  }
  constexpr std::int64_t kLongest = std::numeric_limits<std::uint32_t>::max();
  const std::int64_t grace = absl::ToInt64Milliseconds(options_.coordinator_grace);
  return wire::Recovery{.session_key = options_.session_key,
                        .lineage = options_.lineage,
                        .grace_milliseconds = static_cast<std::uint32_t>(
                            std::clamp(grace, std::int64_t{1}, kLongest)),
                        .arbiter = options_.shrinks() ? options_.arbiter : 0};
}

// The end of the last step comes before the Welcome, after which members announce what is left of
// the open one.
void SessionCore::GoOn(const Gathering::Outcome& gathered, Effects& effects) {
  std::vector<wire::StepDone> ended = gathered.ended;
  for (wire::StepDone& done : ended) {
    if (done.change) done.change = ToTell(*done.change);
  }
  step_->GoOnFrom(gathered.step, ended, gathered.chain);
  collectives_->GoOnFrom(gathered.collectives, gathered.through);
  if (gathered.change) step_->SetNewcomers(gathered.change->newcomers);
  step_->SetNewcomers(gathered.fresh);
  if (gathered.change && !gathered.change->newcomers.empty()) Heal(gathered, effects);
  std::string how = options_.follows() ? "as shard 0 says"
                    : gathered.again   ? "which is reduced again, from gradients that members keep"
                                       : "which nobody has a result of";
  for (const wire::StepDone& done : ended) {
    std::vector<int> ranks = membership_.Reachable();
    std::erase_if(ranks, [&](int rank) { return newcomers_.contains(rank); });
    effects.push_back(FanOutEffect{.ranks = std::move(ranks), .frame = {.header = done}});
    how = absl::StrCat("after step ", done.step, ", which was ",
                       done.verdict == Verdict::kApply ? "applied" : "skipped");
  }
  effects.push_back(LogEffect{
      .message = absl::StrCat(gathered.change && !gathered.change->newcomers.empty()
                                  ? "the lost members have successors"
                              : options_.gone.empty() ? "all members of a lost daemon are here"
                                                      : "the others are here",
                              "; the session goes on with step ", gathered.step, ", ", how)});
}

// Members that are new behind a leaf are so at the root, too.
wire::MembershipChange SessionCore::ToTell(wire::MembershipChange change) const {
  change.iteration = hook_state_.iteration();
  std::vector<int> newcomers;
  for (const int rank : change.newcomers) {
    for (int r = rank; r < rank + membership_.ranks(rank); ++r) newcomers.push_back(r);
  }
  change.newcomers = std::move(newcomers);
  return change;
}

// Whoever has not been in the session begins with the open step, at the hook's iteration.
void SessionCore::Heal(const Gathering::Outcome& gathered, Effects& effects) {
  const wire::MembershipChange change = ToTell(*gathered.change);
  for (const int rank : gathered.fresh) newcomers_[rank] = change;
  if (state_recovery_ != nullptr) step_->TellOwnState();
  effects.push_back(
      LogEffect{.message = absl::StrCat(wire::NewRanks(change.newcomers),
                                        "; the lowest rank that has it is ", change.root)});
}

// Some shards cannot end a step without the others, so that members leave all of them.
MaybeFailure SessionCore::OnGatherAgain(int rank, const wire::GatherAgain& again,
                                        Effects& effects) {
  const std::uint32_t shards = options_.shard.count();
  const bool outlives = step_->outlives_daemon() || options_.gathers;
  if (shards == 1 || !outlives || again.shard >= shards) {
    return ViolationOf(rank, absl::FailedPreconditionError(
                                 absl::StrCat("sent that it has lost shard ", again.shard)));
  }
  effects.push_back(LogEffect{
      .level = LogEffect::Level::kWarning,
      .message = absl::StrCat("rank ", rank, " has lost shard ", again.shard, " (",
                              options_.shard.addresses[again.shard], "); all members gather again"),
      .rank = rank});
  GatherAgain(-1, effects);
  return std::nullopt;
}

bool SessionCore::OutlivesMembers() const {
  return step_->outlives_daemon() && options_.member_grace > absl::ZeroDuration();
}

// Some may have left in good order: whether the training is over nobody knows but the others. They
// leave while they gather, or wait for the successors of all. With nobody else here, nobody has the
// model.
bool SessionCore::MayReplace(const FailureEvent& failure) const {
  return failure.kind == FailureEvent::Kind::kLost && OutlivesMembers() &&
         (options_.shrinks() || membership_.Staying().size() > 1);
}

// A rank whose stream has ended is not waited for when another process has come for it. A leaf's
// session ends then, and the node may begin another one at once.
absl::Status SessionCore::AskAgain(const JoinAsk& ask, const absl::Status& refused,
                                   Effects& effects) {
  const int rank = ask.rank;
  const bool is_leaf = options_.leaf.is_leaf() && state_ == State::kRunning;
  // Before the session runs a rank is free again soon after its stream has ended.
  const bool is_free_soon = state_ == State::kJoining && membership_.IsRank(rank) &&
                            membership_.state(rank) == MemberState::kLost;
  const bool may_free = is_leaf || is_free_soon || OutlivesMembers() ||
                        (options_.gathers && options_.member_grace > absl::ZeroDuration());
  if (!may_free || !absl::IsAlreadyExists(refused)) return refused;
  if (state_ == State::kRunning && membership_.IsRank(rank) && membership_.IsGone(rank)) {
    return TakeInLater(ask);
  }
  const FailureEvent gone{
      .kind = FailureEvent::Kind::kLost,
      .rank = rank,
      .what = absl::AbortedError(CodedText(
          ErrorCode::kMemberClosed,
          absl::StrCat("in step ", step_->number(),
                       ": its connection closed, and another process has come for its rank")))};
  const bool is_gone = state_ == State::kRunning && membership_.IsRank(rank) &&
                       membership_.state(rank) == MemberState::kLost;
  if (is_gone) LetAllLeaversGo(rank, effects);
  if (state_ != State::kRunning) return absl::UnavailableError(refused.message());
  if (is_gone && MayReplace(gone)) {
    if (absl::Status may = AddComer(ask); !may.ok()) return may;
    AwaitSuccessor(gone, effects);
  } else if (is_gone && is_leaf) {
    Apply(gone, effects);
  }
  return absl::UnavailableError(refused.message());
}

// All members report, as if the daemon were lost, so that there is one way back into a session.
void SessionCore::AwaitSuccessor(const FailureEvent& failure, Effects& effects) {
  effects.push_back(
      LogEffect{.level = LogEffect::Level::kWarning,
                .message = absl::StrCat(
                    membership_.NameOf(failure.rank), " was lost ", failure.what.message(), "; ",
                    options_.shrinks() ? std::string("the others go on without it")
                                       : absl::StrCat("its place is held for ",
                                                      absl::FormatDuration(options_.member_grace))),
                .rank = failure.rank});
  effects.push_back(
      DepartureEffect{.rank = failure.rank, .lost = std::string(failure.what.message())});
  GatherAgain(failure.rank, effects);
}

void SessionCore::DoWithout(int left, Effects& effects) {
  effects.push_back(LogEffect{
      .message = absl::StrCat(membership_.NameOf(left), " has left before the others; ",
                              options_.shrinks()
                                  ? std::string("they go on without it")
                                  : absl::StrCat("its place is held for ",
                                                 absl::FormatDuration(options_.member_grace))),
      .rank = left});
  GatherAgain(left, effects);
}

void SessionCore::HandOver(Effects& effects) {
  const bool waits = state_ == State::kJoining;
  if (!waits && (state_ != State::kRunning || !step_->outlives_daemon())) return;
  effects.push_back(LogEffect{
      .message = waits ? std::string(options_.gathers ? "the daemon ends while members gather"
                                                      : "the daemon ends while members join")
                       : absl::StrCat("the daemon ends; members go on with the next "
                                      "one in step ",
                                      step_->number())});
  Close(effects);
}

void SessionCore::Close(Effects& effects) {
  for (const int rank : membership_.Reachable()) {
    effects.push_back(CloseEffect{.rank = rank, .connection = membership_.connection(rank)});
  }
  state_ = State::kClosed;
  membership_.End();
  step_->End();
  collectives_->End();
}

void SessionCore::Apply(const MaybeFailure& failure, Effects& effects) {
  if (!failure || state_ == State::kFailed || state_ == State::kClosed) return;
  const State before = state_;
  LetAllLeaversGo(failure->rank, effects);
  if (state_ != before) return;  // one of them was needed
  // The others need not end with who has left: another process may come, or they go on without it.
  if (failure->kind == FailureEvent::Kind::kGone && state_ == State::kRunning &&
      OutlivesMembers()) {
    return DoWithout(failure->rank, effects);
  }
  const Decision decision = Decide(*failure, membership_);
  const std::string begin = absl::StrCat("session \"", options_.name, "\" failed: ");
  // What failed on another shard says so already.
  const bool said = absl::StartsWith(decision.reason.message(), begin);
  failure_ = absl::Status(decision.reason.code(),
                          absl::StrCat(said ? "" : begin, decision.reason.message()));
  blamed_rank_ = decision.blamed_rank;
  if (state_ == State::kJoining) TellWhatIsKnown(effects);
  SendFailure(failure_, blamed_rank_, membership_, effects);
  state_ = State::kFailed;
  membership_.End();
  if (failure->kind == FailureEvent::Kind::kLost) {
    membership_.Lose(failure->rank);
    effects.push_back(
        DepartureEffect{.rank = failure->rank, .lost = std::string(failure->what.message())});
  }
  step_->End();
  collectives_->End();
}

// Who is READY would not know whether the step that others have applied was. Nobody applies
// anything that all of them could not.
void SessionCore::TellWhatIsKnown(Effects& effects) const {
  for (wire::StepDone& done : rendezvous_->Known()) {
    if (done.change) done.change = ToTell(*done.change);
    effects.push_back(FanOutEffect{.ranks = rendezvous_->Reporters(), .frame = {.header = done}});
  }
}

void SessionCore::Fail(const absl::Status& status, int blamed_rank, Effects& effects) {
  Apply(FailureEvent{.kind = FailureEvent::Kind::kOwner, .rank = blamed_rank, .what = status},
        effects);
}

// Members that go on elsewhere are sent there.
absl::Status SessionCore::CheckOpen() const {
  if (state_ == State::kFailed) return failure_;
  if (state_ != State::kClosed) return absl::OkStatus();
  return Coded(ErrorCode::kResume, absl::NotFoundError("the session has ended here"));
}

// ---- The hook's state

absl::StatusOr<StateSnapshot> SessionCore::Export() const {
  if (state_ == State::kFailed) return failure_;
  if (absl::Status status = hook_state_.CheckIsThere(); !status.ok()) return status;
  if (state_ == State::kJoining && options_.gathers) {
    return Coded(ErrorCode::kStateInStep,
                 absl::UnavailableError(absl::StrCat(
                     "session \"", options_.name,
                     "\" does not have its state yet: its members gather; try again")));
  }
  return hook_state_.Export(step_->number());
}

absl::Status SessionCore::CheckImport(std::uint32_t shards) const {
  if (state_ == State::kFailed) return failure_;
  return hook_state_.CheckReplaceable({.state = state_,
                                       .step = step_->number(),
                                       .in_step = step_->began().has_value(),
                                       .paused = step_->gate().shut(),
                                       .concluding = step_->AwaitsConclusion(),
                                       .shards = shards});
}

absl::Status SessionCore::Install(HookImport& import, Effects& effects, std::uint32_t shards) {
  if (absl::Status status = CheckImport(shards); !status.ok()) return status;
  hook_state_.Install(import);
  step_->ReplaceState();
  effects.push_back(
      FanOutEffect{.ranks = membership_.Reachable(),
                   .frame = {.header = wire::StateReset{.iteration = hook_state_.iteration()}}});
  return absl::OkStatus();
}

}  // namespace gradwire::server

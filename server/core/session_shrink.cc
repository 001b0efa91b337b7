// A session that goes on without members that are lost, and takes others in when a step has ended.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "proto/wire/rank_names.h"
#include "server/core/hand_over_relay.h"
#include "server/core/rendezvous.h"
#include "server/core/session_core.h"
#include "server/core/step.h"

namespace gradwire::server {

void SessionCore::MaybeShrink(absl::Time now, Effects& effects) {
  if (state_ != State::kJoining || !rendezvous_->MayShrink(now)) return;
  std::vector<int> without;
  for (int r = 0; r < options_.world_size; ++r) {
    const MemberState state = membership_.state(r);
    if (state == MemberState::kConnected || membership_.IsElsewhere(r)) continue;
    if (state == MemberState::kLost) {
      effects.push_back(DepartureEffect{.rank = r, .lost = "its stream ended"});
    }
    const int end = r + membership_.ranks(r);
    rendezvous_->SetGone(r);
    for (int gone = r; gone < end; ++gone) without.push_back(gone);
  }
  effects.push_back(
      LogEffect{.level = LogEffect::Level::kWarning,
                .message = absl::StrCat(wire::RankNames(without), " of ", options_.world_size,
                                        " did not come; the session goes on with ",
                                        membership_.Present().size(), " members")});
  MaybeBegin(-1, effects);
}

// Since it was decided to go on without somebody, others may have been lost. Also if everybody is
// here: among them may be processes that have come in the place of most.
bool SessionCore::MayGoOn(Effects& effects) {
  if (!rendezvous_->KnowsClaims()) return false;
  if (!options_.shrinks() || !options_.gathers || rendezvous_->AllNew()) return true;
  if (options_.follows()) return true;  // shard 0 has decided it
  for (const int rank : rendezvous_->LeftBehind()) {
    effects.push_back(SendEffect{
        .rank = rank,
        .frame = {.header = wire::Failure{
                      .code = static_cast<int>(absl::StatusCode::kFailedPrecondition),
                      .message = CodedText(
                          ErrorCode::kLeftBehind,
                          absl::StrCat("session \"", options_.name, "\" went on without rank ",
                                       rank, ", which was away; start it again as a new member")),
                      .blamed_rank = rank}}});
    effects.push_back(CloseEffect{.rank = rank, .connection = membership_.connection(rank)});
    effects.push_back(DepartureEffect{.rank = rank, .lost = "the others went on without it"});
    rendezvous_->SetGone(rank);
  }
  const bool is_whole = std::ssize(membership_.Present()) == options_.world_size;
  if (rendezvous_->HasQuorum(is_whole ? 0 : options_.shrinks_to)) return true;
  if (rendezvous_->AwaitGone() || rendezvous_->WaitsForOthers()) return false;
  Apply(FailureEvent{.kind = FailureEvent::Kind::kOwner,
                     .what = Coded(ErrorCode::kResume, absl::FailedPreconditionError(NoQuorum()))},
        effects);
  return false;
}

void SessionCore::RosterClaimed(const absl::StatusOr<ClaimAnswer>& answer, Effects& effects) {
  if (state_ != State::kJoining) return;
  rendezvous_->OnClaimed(answer, effects) ? MaybeBegin(-1, effects) : GatherAgain(-1, effects);
}

// In the roster that another daemon has claimed with it, nothing is concluded only if it says READY
// in none of the earlier ones any more.
bool SessionCore::ComesBack(const JoinAsk& ask) const {
  return options_.claims() && state_ == State::kRunning && ask.report && step_->outlives_daemon() &&
         membership_.HasPlace(ask.start_id);
}

// ---- Members that leave before the others, and hand over what they have not contributed yet

MaybeFailure SessionCore::OnHandOver(int rank, const wire::HandOver& piece,
                                     const wire::PayloadRef& payload, Effects& effects) {
  return hand_overs_->On(
      rank, piece, payload,
      OutlivesMembers() ? "" : "the session ends with a member that leaves before the others",
      effects);
}

MaybeFailure SessionCore::OnHandOverAnswer(int rank, const wire::HandOverAnswer& answer,
                                           Effects& effects) {
  return hand_overs_->On(rank, answer, effects);
}

std::string SessionCore::NoQuorum() const {
  const std::vector<int> present = membership_.Present();
  std::vector<int> fresh;
  for (const int rank : present) {
    if (rendezvous_->IsNewcomer(rank)) fresh.push_back(rank);
  }
  return absl::StrCat(
      "of those who concluded the last step no majority is here, but only ranks ",
      absl::StrJoin(present, ", "), " of ", options_.world_size,
      fresh.empty() ? ", some of which are new" : absl::StrCat("; ", wire::NewRanks(fresh)),
      "; begin again from a checkpoint");
}

// It is asked for again and again, until a step has ended. A report says that it was here before,
// and that its model is an old one.
absl::Status SessionCore::TakeInLater(const JoinAsk& ask) {
  if (ask.report) {
    return Coded(ErrorCode::kLeftBehind,
                 absl::FailedPreconditionError(
                     absl::StrCat("session \"", options_.name, "\" went on without rank ", ask.rank,
                                  ", which was away; start it again as a new member")));
  }
  if (absl::Status may = AddComer(ask); !may.ok()) return may;
  return absl::UnavailableError(absl::StrCat("session \"", options_.name, "\" takes rank ",
                                             ask.rank, " in when it has ended a step; try again"));
}

// A trainer on a GPU may miss nothing, and weighs nothing either: beside a leaf of several ranks it
// would have to.
absl::Status SessionCore::CheckWeights(const std::string& leaf, int ranks) const {
  for (const int rank : membership_.Reachable()) {
    const bool weighs = ranks > 1 && !membership_.IsLeaf(rank) && options_.shrinks();
    if (!weighs || membership_.abilities(rank).may_miss) continue;
    return Coded(ErrorCode::kLeaf,
                 absl::FailedPreconditionError(absl::StrCat(
                     leaf, " cannot be taken in: gradients would get weights, and ",
                     membership_.NameOf(rank), " has them on a GPU; allowed: trainers")));
  }
  return absl::OkStatus();
}

absl::Status SessionCore::AddComer(const JoinAsk& ask) {
  const int end = ask.rank + std::max(1, ask.leaf_ranks);
  const int lost = membership_.IsGone(ask.rank) ? ask.rank : ask.rank + membership_.ranks(ask.rank);
  for (int r = ask.rank; r < end; ++r) {
    if (membership_.IsRank(r) && (r < lost || membership_.IsGone(r))) continue;
    return Coded(ErrorCode::kRankTaken,
                 absl::AlreadyExistsError(absl::StrCat(
                     "leaf \"", ask.leaf, "\" stands for rank ", r,
                     ", which is taken by another process; allowed: ranks that are gone")));
  }
  if (step_->groups().groups().any()) {
    absl::Status fits = rendezvous_->CheckGroup(ask.rank, ask.group, ask.leaf_ranks > 0);
    if (!fits.ok()) return fits;
  }
  absl::Status weighs = CheckWeights(absl::StrCat("leaf \"", ask.leaf, "\""), ask.leaf_ranks);
  if (!weighs.ok()) return weighs;
  for (int r = ask.rank; r < end; ++r) comers_.insert(r);
  return absl::OkStatus();
}

void SessionCore::MaybeTakeIn(Effects& effects) {
  if (comers_.empty() || state_ != State::kRunning) return;
  const std::vector<int> comers(comers_.begin(), comers_.end());
  effects.push_back(
      LogEffect{.message = absl::StrCat("a process has come for ", wire::RankNames(comers),
                                        "; all members gather")});
  GatherAgain(-1, effects);
}

void SessionCore::GatherAgain(int lost, Effects& effects) {
  LetAllLeaversGo(lost, effects);
  for (int first = 0; first < options_.world_size; first += membership_.ranks(first)) {
    const bool is_out = first == lost || membership_.IsGone(first) ||
                        membership_.state(first) == MemberState::kLeft;
    for (int r = first; r < first + membership_.ranks(first); ++r) {
      if (is_out && !comers_.contains(r)) gone_.push_back(r);
    }
  }
  Close(effects);
  awaits_successor_ = true;
}

}  // namespace gradwire::server

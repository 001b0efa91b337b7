#include "server/core/rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"

namespace gradwire::server {
namespace {

// Ranks ascend, as the codec has checked.
absl::Status CheckRanks(int own, int world_size, const wire::MemberReport& report) {
  const auto refuse = [&](const char* field, const std::vector<int>& ranks) {
    return Coded(ErrorCode::kResume,
                 absl::InvalidArgumentError(absl::StrCat(
                     "report.", field, ": has ", ranks.size(), " ranks up to ",
                     ranks.empty() ? -1 : ranks.back(), "; allowed are ranks from 0 to ",
                     world_size - 1, ", in a roster with the member's own, ", own)));
  };
  if (report.shares > static_cast<std::uint32_t>(world_size)) {
    return Coded(ErrorCode::kResume,
                 absl::InvalidArgumentError(absl::StrCat("report.shares: is ", report.shares,
                                                         "; allowed: 0 to ", world_size)));
  }
  if (!report.concluded.empty() && report.concluded.back() >= world_size) {
    return refuse("concluded", report.concluded);
  }
  if (!report.roster) return absl::OkStatus();
  const std::vector<int>& ranks = report.roster->ranks;
  const bool right = std::ranges::binary_search(ranks, own) && ranks.back() < world_size;
  return right ? absl::OkStatus() : refuse("roster", ranks);
}

}  // namespace

absl::StatusOr<int> Rendezvous::Join(const JoinAsk& ask, absl::Time now, Effects& effects) {
  if (!is_complete_) ComeAfterAll(ask);
  const auto place = membership_.Join(ask.rank, ask.start_id, options_.name, now);
  if (!place.ok()) return place.status();
  if (place->fresh && ask.leaf_ranks > 0) {
    absl::Status leaf = membership_.SetLeaf(place->rank, ask.leaf_ranks, ask.leaf);
    if (!leaf.ok()) {
      membership_.Free(place->rank);
      return leaf;
    }
  }
  if (place->fresh && gathering_) {
    gathering_->SetPlace(place->rank,
                         ask.leaf_ranks > 0 ? std::optional(ask.leaf_ranks) : std::nullopt);
  }
  asks_[static_cast<std::size_t>(place->rank)] = ask.group;
  if (options_.gathers && (ask.report || place->fresh)) {
    gathering_->Take(place->rank, ask.report);
    if (claims_ && !is_complete_ && claims_->AskAgain()) {
      effects.push_back(ClaimRosterEffect{.lineage = options_.lineage});
    }
  }
  if (place->fresh) {
    effects.push_back(LogEffect{.message = absl::StrCat(membership_.NameOf(place->rank), " joined"),
                                .rank = place->rank});
  }
  return place->rank;
}

// A leaf's other ranks are taken with its first one.
void Rendezvous::ComeAfterAll(const JoinAsk& ask) {
  const int last = ask.rank + std::max(1, ask.leaf_ranks) - 1;
  if (!membership_.IsRank(ask.rank) || !membership_.IsRank(last)) return;
  for (int r = ask.rank; r <= last; ++r) {
    if (!membership_.IsGone(r) && membership_.state(r) != MemberState::kAbsent) return;
  }
  for (int r = ask.rank; r <= last; ++r) membership_.Free(r);
}

absl::Status Rendezvous::CheckReport(const JoinAsk& ask) const {
  if (options_.gathers && ask.report) {
    absl::Status valid = CheckRanks(ask.rank, options_.world_size, *ask.report);
    if (valid.ok()) valid = gathering_->Check(*ask.report);
    return valid.ok() ? CheckLife(ask) : valid;
  }
  if (options_.gathers && options_.member_grace > absl::ZeroDuration()) {
    if (gathering_->Shares() > 1) {
      absl::Status fits = CheckGroup(ask.rank, ask.group, ask.leaf_ranks > 0);
      if (!fits.ok()) return fits;
    }
    if (options_.shrinks() && ask.leaf_ranks > 0 && options_.shard.count() > 1) {
      return Coded(ErrorCode::kResume,
                   absl::FailedPreconditionError(
                       absl::StrCat("session \"", options_.name,
                                    "\" has lost a member, and has several daemons; allowed in its "
                                    "place: a trainer")));
    }
    if (ask.rank >= 0) return CheckLife(ask);
    return Coded(ErrorCode::kResume, absl::FailedPreconditionError(absl::StrCat(
                                         "rank: is -1, but session \"", options_.name,
                                         "\" has lost a member; allowed: the rank of a lost one")));
  }
  if (!options_.gathers && (!ask.report || membership_.HasPlace(ask.start_id))) {
    return absl::OkStatus();
  }
  return Coded(ErrorCode::kResume,
               absl::FailedPreconditionError(absl::StrCat(
                   "session \"", options_.name, "\" ",
                   options_.gathers
                       ? "waits for the members of a lost daemon, and this process is none of them"
                       : "was begun again by other processes; join it as a new member")));
}

// With another version of the communicator it would end the whole group.
absl::Status Rendezvous::CheckGroup(int rank, const GroupAsk& ask, bool is_leaf) const {
  const auto refuse = [&](const std::string& why) {
    return Coded(ErrorCode::kNodeGroup,
                 absl::FailedPreconditionError(
                     absl::StrCat("session \"", options_.name, "\" has node groups, and ", why)));
  };
  if (is_leaf) return refuse("a leaf daemon has come; allowed: trainers");
  for (int r = 0; r < membership_.world_size() && !ask.name.empty(); ++r) {
    const GroupAsk& other = asks_[static_cast<std::size_t>(r)];
    const bool is_member = r != rank && membership_.state(r) == MemberState::kConnected &&
                           (is_complete_ || gathering_->HasReport(r));
    if (!is_member || other.name != ask.name || other.communicator == ask.communicator) continue;
    return refuse(absl::StrCat("rank ", r, " has ", other.communicator, ", the process for rank ",
                               rank, " of the same group has ", ask.communicator,
                               "; install the same version"));
  }
  return absl::OkStatus();
}

std::vector<std::pair<int, absl::Status>> Rendezvous::Misfits() const {
  std::vector<std::pair<int, absl::Status>> misfits;
  if (!gathering_ || gathering_->Shares() <= 1) return misfits;
  for (int r = 0; r < membership_.world_size(); ++r) {
    if (membership_.state(r) != MemberState::kConnected || gathering_->HasReport(r)) continue;
    absl::Status fits = CheckGroup(r, asks_[static_cast<std::size_t>(r)], membership_.IsLeaf(r));
    if (!fits.ok()) misfits.emplace_back(r, std::move(fits));
  }
  return misfits;
}

bool Rendezvous::IsOver(const JoinAsk& ask) const {
  return options_.follows() && ask.report && ask.report->session_key == options_.session_key &&
         ask.report->lineage == options_.lineage && ask.life > options_.life;
}

// The member has been at shard 0 in a life that is over, and will hear of it.
absl::Status Rendezvous::CheckLife(const JoinAsk& ask) const {
  if (!options_.follows() || ask.life == options_.life || IsActive(Mutant::kOldLifeFollowed)) {
    return absl::OkStatus();
  }
  return Coded(ErrorCode::kResume,
               absl::UnavailableError(absl::StrCat("shard.life: is ", ask.life, ", and session \"",
                                                   options_.name, "\" is in life ", options_.life,
                                                   "; try again")));
}

// If the others wait for exactly this rank, they would do so until the join timeout: the process
// that was to take it has just been refused. Any other wrong join is only refused, because a
// process that belongs to another job must not end this one. Nor must one that comes while members
// gather, who have something to lose: the right one may still come in their time.
MaybeFailure Rendezvous::OnWrongJoin(const JoinAsk& ask, const absl::Status& difference) {
  if (!membership_.IsRank(ask.rank) || membership_.state(ask.rank) != MemberState::kAbsent) {
    return std::nullopt;
  }
  if (ask.report) return std::nullopt;  // it is of another session, or comes too late
  if (options_.gathers) {
    wrong_join_ = {.rank = ask.rank,
                   .what = RecodedText(ErrorCode::kMissingMembers,
                                       absl::StrCat("a process that came for rank ", ask.rank,
                                                    " was refused: ", difference.message()))};
    return std::nullopt;
  }
  return FailureEvent{.kind = FailureEvent::Kind::kWrongJoin, .rank = ask.rank, .what = difference};
}

void Rendezvous::Leave(int rank, Effects& effects) {
  effects.push_back(CloseEffect{.rank = rank, .connection = membership_.connection(rank)});
  effects.push_back(DepartureEffect{.rank = rank});
  last_departure_ = absl::StrCat("rank ", rank, " left");
  membership_.Free(rank);
}

absl::StatusOr<NodeGroups> Rendezvous::Group() const {
  if (absl::Status same = gathering_ ? gathering_->CheckShares() : absl::OkStatus(); !same.ok()) {
    return same;
  }
  std::vector<GroupAsk> asks = asks_;
  for (int r = 0; r < membership_.world_size(); ++r) {
    GroupAsk& ask = asks[static_cast<std::size_t>(r)];
    ask.ranks = membership_.IsElsewhere(r) ? 0 : membership_.ranks(r);
    ask.gone = membership_.IsGone(r);
  }
  return NodeGroups::Make(asks, gathering_ ? gathering_->Shares() : 0);
}

MaybeFailure Rendezvous::Tick(absl::Time now, Effects& effects) {
  for (const Membership::Freed& freed : membership_.FreeGone(now)) {
    last_departure_ = freed.why;
    // Newcomers that come and go would keep the others waiting without an end.
    const bool waits_anew = options_.gathers && options_.member_grace > absl::ZeroDuration();
    if (waits_anew && gathering_->HasReport(freed.rank)) began_ = now;
    effects.push_back(LogEffect{
        .level = LogEffect::Level::kWarning,
        .message = absl::StrCat("rank ", freed.rank, " is free again: ", freed.why, " before all ",
                                options_.world_size, " members had joined"),
        .rank = freed.rank});
    effects.push_back(DepartureEffect{.rank = freed.rank, .lost = freed.why});
    if (freed.connection) {
      effects.push_back(CloseEffect{.rank = freed.rank, .connection = *freed.connection});
    }
  }
  if (claims_ && claims_->Tick(now)) {
    effects.push_back(ClaimRosterEffect{.lineage = options_.lineage});
  }
  // A leaf that waits for the root's session has the root's timeout.
  const std::string claim = ClaimWaits();
  if (membership_.AllConnected() && claim.empty()) return std::nullopt;
  if (now - began_ <= options_.join_timeout || IsActive(Mutant::kJoinNeverTimesOut)) {
    return std::nullopt;
  }
  if (membership_.AllConnected()) return OnClaimTimeout();
  // Who is here, and whose stream has just broken, has its resume grace, but not again and again.
  const absl::Duration longest = options_.join_timeout + options_.silence_timeout;
  if (membership_.AllThere() && now - began_ <= longest) return std::nullopt;
  const bool was_refused =
      wrong_join_.rank >= 0 && membership_.state(wrong_join_.rank) == MemberState::kAbsent;
  const std::string& doubt = was_refused ? wrong_join_.what : options_.join_doubt;
  return FailureEvent{.kind = FailureEvent::Kind::kJoinTimeout,
                      .what = absl::DeadlineExceededError(claim.empty() ? doubt : claim),
                      .waited = options_.join_timeout};
}

absl::StatusOr<std::optional<Gathering::Outcome>> Rendezvous::Gathered(const NodeGroups& groups) {
  if (!gathering_ || gathering_->AllNew()) return std::optional<Gathering::Outcome>();
  gathering_->SetGrouped(groups.any());
  absl::StatusOr<Gathering::Outcome> outcome = gathering_->Decide();
  if (!outcome.ok()) return outcome.status();
  return std::optional(*std::move(outcome));
}

std::vector<wire::StepDone> Rendezvous::Known() const {
  return gathering_ ? gathering_->Known() : std::vector<wire::StepDone>();
}

std::vector<int> Rendezvous::Reporters() const {
  std::vector<int> ranks = membership_.Reachable();
  std::erase_if(ranks, [this](int rank) { return !gathering_ || !gathering_->HasModel(rank); });
  return ranks;
}

// ---- Without those who do not come

std::vector<int> Rendezvous::LeftBehind() const {
  return gathering_ ? gathering_->LeftBehind() : std::vector<int>();
}

bool Rendezvous::HasQuorum(int least) {
  const bool are_enough = gathering_->IsQuorum(membership_.Present(), least);
  if (!claims_) return are_enough;
  if (!claims_->IsUpToDate()) return false;
  const bool may_follow = MayFollowClaims();
  claims_->SetWaiting(are_enough && !may_follow);
  return are_enough && may_follow;
}

// Those that were lost before are not waited for, unless they have come again.
bool Rendezvous::MayShrink(absl::Time now) {
  if (!gathering_ || !options_.shrinks() || membership_.AllConnected()) return false;
  if (options_.follows()) return MayFollow();
  bool waits = false;
  for (int r = 0; r < membership_.world_size(); ++r) {
    const MemberState state = membership_.state(r);
    if (state == MemberState::kConnected || membership_.IsElsewhere(r)) continue;
    // Its stream comes, or comes again; or it is freed.
    if (state == MemberState::kJoined || state == MemberState::kLost) return false;
    const bool was_lost = std::ranges::count(options_.gone, r) > 0;
    waits |= state != MemberState::kAbsent || !was_lost;
  }
  if (waits && now - created_ <= options_.shrink_after) return false;
  return HasQuorum(options_.shrinks_to);
}

bool Rendezvous::MayFollow() const {
  const std::vector<int>* const ranks = gathering_->Followed();
  return ranks != nullptr && std::ranges::all_of(*ranks, [&](int rank) {
           return membership_.state(rank) == MemberState::kConnected;
         });
}

void Rendezvous::SetGone(int rank) {
  const int last = rank + membership_.ranks(rank) - 1;
  for (int r = rank; r <= last; ++r) {
    membership_.SetGone(r);
    gathering_->SetGone(r);
  }
}

bool Rendezvous::AwaitGone() {
  bool any = false;
  for (int r = 0; r < membership_.world_size(); ++r) {
    if (!membership_.IsGone(r)) continue;
    membership_.Free(r);
    any = true;
  }
  return any;
}

void Rendezvous::Complete(const NodeGroups& groups, const wire::Welcome& welcome,
                          const std::map<int, wire::MembershipChange>& newcomers,
                          Effects& effects) {
  is_complete_ = true;
  if (std::ssize(membership_.Present()) == options_.world_size || options_.leaf.is_leaf()) {
    effects.push_back(
        LogEffect{.message = absl::StrCat("all ", options_.world_size, " members are here")});
  }
  // Who is behind this leaf has no weight: the leaf has it at the root.
  const bool weighted = groups.has_leaves() && !options_.leaf.is_leaf();
  if (!groups.any() && !weighted && newcomers.empty()) {
    effects.push_back(FanOutEffect{.ranks = membership_.Reachable(), .frame = {.header = welcome}});
    return;
  }
  for (std::size_t g = 0; g < groups.count(); ++g) {
    if (groups.ranks(g).size() == 1) continue;
    effects.push_back(LogEffect{.message = absl::StrCat(groups.Name(g), " are one node group")});
  }
  for (const int rank : membership_.Reachable()) {
    wire::Welcome own = welcome;
    if (groups.any() || weighted) own.group = groups.PlaceOf(rank);
    if (const auto found = newcomers.find(rank); found != newcomers.end()) {
      own.change = found->second;
    }
    effects.push_back(SendEffect{.rank = rank, .frame = {.header = std::move(own)}});
  }
}

}  // namespace gradwire::server

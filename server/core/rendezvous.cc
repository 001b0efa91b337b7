#include "server/core/rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"

namespace gradwire::server {

absl::StatusOr<int> Rendezvous::Join(const JoinAsk& ask, absl::Time now, Effects& effects) {
  const auto place = membership_.Join(ask.rank, ask.start_id, options_.name, now);
  if (!place.ok()) return place.status();
  if (place->fresh && ask.leaf_ranks > 0) {
    absl::Status leaf = membership_.SetLeaf(place->rank, ask.leaf_ranks, ask.leaf);
    if (!leaf.ok()) {
      membership_.Free(place->rank);
      return leaf;
    }
  }
  asks_[static_cast<std::size_t>(place->rank)] = ask.group;
  if (options_.gathers && (ask.report || place->fresh)) {
    gathering_->Take(place->rank, ask.report);
  }
  if (place->fresh) {
    effects.push_back(LogEffect{.message = absl::StrCat(membership_.NameOf(place->rank), " joined"),
                                .rank = place->rank});
  }
  return place->rank;
}

absl::Status Rendezvous::CheckReport(const JoinAsk& ask) const {
  if (options_.gathers && ask.report) return gathering_->Check(*ask.report);
  if (options_.gathers && options_.member_grace > absl::ZeroDuration()) {
    if (ask.leaf_ranks > 0 || !ask.addresses.empty() || !ask.group.name.empty()) {
      return Coded(ErrorCode::kResume,
                   absl::FailedPreconditionError(absl::StrCat(
                       "session \"", options_.name,
                       "\" has lost a member; allowed in its place: a trainer without leaf, shards "
                       "and node group")));
    }
    if (ask.rank >= 0) return absl::OkStatus();
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

// If the others wait for exactly this rank, they would do so until the join timeout: the process
// that was to take it has just been refused. Any other wrong join is only refused, because a
// process that belongs to another job must not end this one.
MaybeFailure Rendezvous::OnWrongJoin(const JoinAsk& ask, const absl::Status& difference) const {
  if (!membership_.IsRank(ask.rank) || membership_.state(ask.rank) != MemberState::kAbsent) {
    return std::nullopt;
  }
  if (ask.report) return std::nullopt;  // it is of another session, or comes too late
  return FailureEvent{.kind = FailureEvent::Kind::kWrongJoin, .rank = ask.rank, .what = difference};
}

void Rendezvous::Leave(int rank, Effects& effects) {
  effects.push_back(CloseEffect{.rank = rank, .connection = membership_.connection(rank)});
  effects.push_back(DepartureEffect{.rank = rank});
  last_departure_ = absl::StrCat("rank ", rank, " left");
  membership_.Free(rank);
}

absl::StatusOr<NodeGroups> Rendezvous::Group() const {
  std::vector<GroupAsk> asks = asks_;
  for (int r = 0; r < membership_.world_size(); ++r) {
    asks[static_cast<std::size_t>(r)].ranks = membership_.IsElsewhere(r) ? 0 : membership_.ranks(r);
  }
  return NodeGroups::Make(asks);
}

MaybeFailure Rendezvous::Tick(absl::Time now, Effects& effects) {
  for (const Membership::Freed& freed : membership_.FreeGone(now)) {
    last_departure_ = freed.why;
    if (options_.gathers && options_.member_grace > absl::ZeroDuration()) began_ = now;
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
  // A leaf that waits for the root's session has the root's timeout.
  if (membership_.AllConnected()) return std::nullopt;
  if (now - began_ <= options_.join_timeout || IsActive(Mutant::kJoinNeverTimesOut)) {
    return std::nullopt;
  }
  return FailureEvent{.kind = FailureEvent::Kind::kJoinTimeout, .waited = options_.join_timeout};
}

absl::StatusOr<std::optional<Gathering::Outcome>> Rendezvous::Gathered() const {
  if (!gathering_ || gathering_->AllNew()) return std::optional<Gathering::Outcome>();
  absl::StatusOr<Gathering::Outcome> outcome = gathering_->Decide();
  if (!outcome.ok()) return outcome.status();
  return std::optional(*std::move(outcome));
}

void Rendezvous::Complete(const NodeGroups& groups, const wire::Welcome& welcome,
                          const std::map<int, wire::MembershipChange>& newcomers,
                          Effects& effects) const {
  effects.push_back(
      LogEffect{.message = absl::StrCat("all ", options_.world_size, " members are here")});
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

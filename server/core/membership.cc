#include "server/core/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "proto/wire/rank_names.h"
#include "server/core/leaf_place.h"

namespace gradwire::server {
namespace {

// What a tick counts for at most: well below the resume grace.
constexpr absl::Duration kMostOfATick = absl::Milliseconds(250);

}  // namespace

Membership::Membership(int world_size, const Limits& limits, absl::Time now)
    : limits_(limits), last_tick_(now), members_(static_cast<std::size_t>(world_size)) {}

void Membership::SetElsewhere(int first, int count) {
  for (int r = first; r < first + count; ++r) At(r).state = MemberState::kElsewhere;
}

void Membership::SetGone(int rank) {
  Free(rank);
  At(rank).state = MemberState::kGone;
}

absl::Status Membership::SetLeaf(int rank, int ranks, const std::string& name) {
  for (int r = rank + 1; r < rank + ranks; ++r) {
    if (At(r).state == MemberState::kAbsent) continue;
    return Coded(ErrorCode::kRankTaken,
                 absl::AlreadyExistsError(absl::StrCat(
                     "leaf \"", name, "\" stands for ranks ", rank, " to ", rank + ranks - 1,
                     ", but rank ", r, " is taken by another process")));
  }
  At(rank).ranks = ranks;
  At(rank).leaf = name;
  SetElsewhere(rank + 1, ranks - 1);
  return absl::OkStatus();
}

bool Membership::HasLeaves() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.ranks > 1 || !member.leaf.empty(); });
}

// Join is idempotent: a member that missed the answer asks again with the same start id and must
// get the same rank. Otherwise one process would hold two ranks.
absl::StatusOr<Membership::Place> Membership::Join(int rank, std::uint64_t start_id,
                                                   const std::string& session, absl::Time now) {
  for (int r = 0; r < world_size(); ++r) {
    const Member& member = At(r);
    if (member.state == MemberState::kAbsent || member.start_id != start_id) continue;
    if (rank != -1 && rank != r) {
      return Coded(ErrorCode::kRankTaken,
                   absl::AlreadyExistsError(absl::StrCat("this process has rank ", r,
                                                         " already and asks for rank ", rank)));
    }
    if (member.state == MemberState::kLeft) {
      return Coded(ErrorCode::kClosed, absl::FailedPreconditionError(
                                           absl::StrCat("rank ", r, " has left the session")));
    }
    return Place{.rank = r, .fresh = false};
  }
  if (rank == -1) {
    const auto free = std::find_if(members_.begin(), members_.end(), [](const Member& member) {
      return member.state == MemberState::kAbsent;
    });
    if (free == members_.end()) {
      return Coded(ErrorCode::kRankTaken,
                   absl::AlreadyExistsError(absl::StrCat(
                       "all ", world_size(), " ranks of session \"", session, "\" are taken")));
    }
    rank = static_cast<int>(free - members_.begin());
  }
  // A lost member keeps its rank until FreeGone frees it, because it may still resume.
  if (At(rank).state != MemberState::kAbsent) {
    return Coded(ErrorCode::kRankTaken,
                 absl::AlreadyExistsError(absl::StrCat("rank ", rank, " of session \"", session,
                                                       "\" is taken by another process")));
  }
  At(rank) =
      Member{.state = MemberState::kJoined, .start_id = start_id, .last_heard = now, .since = now};
  return Place{.rank = rank};
}

bool Membership::HasPlace(std::uint64_t start_id) const {
  return std::any_of(members_.begin(), members_.end(), [start_id](const Member& member) {
    return member.state != MemberState::kAbsent && member.start_id == start_id;
  });
}

// The token may be older than the membership: the rank may have been freed and taken by another
// process since. The start id detects that.
absl::Status Membership::CheckAttach(int rank, std::uint64_t start_id) const {
  if (!IsRank(rank)) {
    return Coded(ErrorCode::kNotAMember,
                 absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is not in the session")));
  }
  const Member& member = At(rank);
  if (member.state == MemberState::kAbsent || member.state == MemberState::kLeft ||
      member.start_id != start_id) {
    return Coded(ErrorCode::kNotAMember,
                 absl::FailedPreconditionError(
                     absl::StrCat("rank ", rank, " is ", Name(member.state), "; join again")));
  }
  // A session that has failed has said so before.
  if (member.state == MemberState::kEnded) {
    return Coded(ErrorCode::kResume, absl::NotFoundError("the session has left this daemon"));
  }
  return absl::OkStatus();
}

// A member may see that its stream broke, and resume, before the daemon sees it. So the new stream
// replaces one that still seems connected.
std::optional<std::uint64_t> Membership::Attach(int rank, std::uint64_t connection,
                                                absl::Time now) {
  Member& member = At(rank);
  std::optional<std::uint64_t> replaced;
  if (member.state == MemberState::kConnected && member.connection != connection) {
    replaced = member.connection;
  }
  member.state = MemberState::kConnected;
  member.connection = connection;
  member.last_heard = now;
  return replaced;
}

// A frame of a stream that was replaced says nothing about the member: it may be long on its way.
bool Membership::Hear(int rank, std::uint64_t connection, absl::Time now) {
  if (!IsRank(rank)) return false;
  Member& member = At(rank);
  if (member.state != MemberState::kConnected) return false;
  if (member.connection != connection && !IsActive(Mutant::kOldStreamHeard)) return false;
  member.last_heard = now;
  return true;
}

// The end of a replaced stream may be reported after its successor was attached. It must not make
// the member lost.
bool Membership::Detach(int rank, std::uint64_t connection, absl::Time now) {
  if (!IsRank(rank)) return false;
  Member& member = At(rank);
  if (member.state != MemberState::kConnected || member.connection != connection) return false;
  member.state = MemberState::kLost;
  member.since = now;
  return true;
}

bool Membership::IsHeldBy(int rank, std::uint64_t start_id) const {
  return IsRank(rank) && At(rank).start_id == start_id;
}

void Membership::Leave(int rank, absl::Time now) {
  At(rank).state = MemberState::kLeft;
  At(rank).last_heard = now;
}

void Membership::Free(int rank) {
  const int ranks = At(rank).ranks;
  for (int r = rank; r < rank + ranks; ++r) At(r) = Member{};
}

void Membership::End() {
  for (Member& member : members_) {
    if (member.state == MemberState::kConnected || member.state == MemberState::kJoined) {
      member.state = MemberState::kEnded;
    }
  }
}

void Membership::Lose(int rank) { At(rank).state = MemberState::kLost; }

// If a tick comes late, the daemon itself stood still (a stopped process, a busy machine) and could
// not hear anybody. The lateness is added to every member's times, so that nobody is declared lost
// for it. kMostOfATick of each gap still counts, so that silence ends even if every tick is late.
void Membership::Tick(absl::Time now) {
  const absl::Duration late = now - last_tick_ - kMostOfATick;
  last_tick_ = now;
  if (late <= absl::ZeroDuration()) return;
  for (Member& member : members_) {
    member.last_heard = std::min(member.last_heard + late, now);
    member.since = std::min(member.since + late, now);
  }
}

std::optional<Membership::Freed> Membership::GoneBeforeStart(int rank, absl::Time now) const {
  const Member& member = At(rank);
  if (member.state == MemberState::kJoined && now - member.since > limits_.token_timeout) {
    return Freed{.rank = rank,
                 .why = absl::StrCat("rank ", rank, " opened no stream"),
                 .connection = std::nullopt};
  }
  if (member.state == MemberState::kLost && now - member.since > limits_.resume_grace) {
    return Freed{.rank = rank,
                 .why = absl::StrCat("rank ", rank, "'s stream ended"),
                 .connection = std::nullopt};
  }
  if (member.state == MemberState::kConnected &&
      now - member.last_heard > limits_.silence_timeout) {
    return Freed{.rank = rank,
                 .why = absl::StrCat("nothing was heard from rank ", rank),
                 .connection = member.connection};
  }
  return std::nullopt;
}

std::vector<Membership::Freed> Membership::FreeGone(absl::Time now) {
  std::vector<Freed> freed;
  for (int r = 0; r < world_size(); ++r) {
    std::optional<Freed> one = GoneBeforeStart(r, now);
    if (!one) continue;
    Free(r);
    freed.push_back(*std::move(one));
  }
  return freed;
}

// Unlike GoneBeforeStart it ignores kJoined: the session runs only after all members have
// connected, and no rank is freed afterwards.
std::optional<Membership::Loss> Membership::FindLoss(absl::Time now) const {
  for (int r = 0; r < world_size(); ++r) {
    const Member& member = At(r);
    if (member.state == MemberState::kLost && now - member.since > limits_.resume_grace) {
      return Loss{
          .rank = r,
          .why = CodedText(ErrorCode::kMemberClosed, "its connection closed and did not resume")};
    }
    if (member.state == MemberState::kConnected &&
        now - member.last_heard > limits_.silence_timeout) {
      return Loss{.rank = r,
                  .why = CodedText(ErrorCode::kMemberSilent,
                                   absl::StrCat("nothing was heard from it for ",
                                                absl::FormatDuration(limits_.silence_timeout)))};
    }
  }
  return std::nullopt;
}

bool Membership::All(MemberState state) const {
  return std::all_of(members_.begin(), members_.end(), [state](const Member& member) {
    return member.state == state || !IsAwaited(member.state);
  });
}

bool Membership::AllThere() const {
  return std::ranges::all_of(members_, [](const Member& member) {
    return member.state == MemberState::kConnected || member.state == MemberState::kLost ||
           !IsAwaited(member.state);
  });
}

bool Membership::AllHere(const std::vector<bool>& is) const {
  for (int r = 0; r < world_size(); ++r) {
    if (!is[static_cast<std::size_t>(r)] && !IsElsewhere(r)) return false;
  }
  return true;
}

std::vector<int> Membership::Reachable() const {
  std::vector<int> ranks;
  for (int r = 0; r < world_size(); ++r) {
    if (At(r).state == MemberState::kConnected) ranks.push_back(r);
  }
  return ranks;
}

std::vector<int> Membership::Present() const {
  std::vector<int> present;
  for (const int rank : Reachable()) {
    for (int r = rank; r < rank + ranks(rank); ++r) present.push_back(r);
  }
  return present;
}

std::vector<int> Membership::Staying() const {
  std::vector<int> ranks;
  for (int r = 0; r < world_size(); ++r) {
    if (At(r).state != MemberState::kLeft && !IsElsewhere(r)) ranks.push_back(r);
  }
  return ranks;
}

std::optional<int> Membership::FirstLeft() const {
  for (int r = 0; r < world_size(); ++r) {
    if (At(r).state == MemberState::kLeft) return r;
  }
  return std::nullopt;
}

std::string Membership::NameOf(int rank) const {
  if (!IsRank(rank) || !IsLeaf(rank)) return absl::StrCat("rank ", rank);
  return NameOfLeaf(At(rank).leaf, rank, At(rank).ranks);
}

std::string Membership::Names(const std::vector<int>& ranks, absl::Time now) const {
  const bool leaves =
      std::any_of(ranks.begin(), ranks.end(), [this](int rank) { return IsLeaf(rank); });
  std::string text = absl::StrCat("ranks ", absl::StrJoin(ranks, ", "));
  if (ranks.size() == 1 || leaves) {
    text = absl::StrJoin(ranks, ", ",
                         [this](std::string* out, int rank) { out->append(NameOf(rank)); });
  }
  if (ranks.size() == 1) {
    const Member& member = At(ranks[0]);
    const absl::Duration ago = absl::Trunc(now - member.last_heard, absl::Milliseconds(100));
    absl::StrAppend(&text, " (", Name(member.state), ", last heard ",
                    ago > absl::ZeroDuration() ? absl::FormatDuration(ago) + " ago" : "just now",
                    ")");
  }
  return text;
}

std::string Membership::MissingNames() const {
  std::vector<int> missing;
  for (int r = 0; r < world_size(); ++r) {
    if (At(r).state != MemberState::kConnected && !IsElsewhere(r)) missing.push_back(r);
  }
  return absl::StrCat(wire::RankNames(missing), " of ", world_size());
}

std::string Name(MemberState state) {
  switch (state) {
    case MemberState::kAbsent:
      return "absent";
    case MemberState::kJoined:
      return "joined";
    case MemberState::kConnected:
      return "connected";
    case MemberState::kLost:
      return "lost";
    case MemberState::kLeft:
      return "left";
    case MemberState::kEnded:
      return "ended";
    case MemberState::kElsewhere:
      return "elsewhere";
    case MemberState::kGone:
      return "gone";
  }
  return "unknown";
}

}  // namespace gradwire::server

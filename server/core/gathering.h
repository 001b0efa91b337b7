// What the members of a session tell a fresh daemon after they have lost theirs, and what follows.
//
// The members are the log: the daemon keeps nothing that they do not have. A step is concluded only
// after every member has said READY, which no member takes back. So whatever the lost daemon told
// anybody, the members together show it:
// * one of them has seen the step end: it ended like that, for all;
// * all are READY: the step may have ended, so it ends with what they say;
// * some may have results, and not all are READY: it cannot have ended. It is dropped, which is a
//   SKIP, because the gradients of those who have results may be gone; if these keep them, the step
//   goes on;
// * nobody can have any result: the step goes on, as a new attempt.
// A decision that a daemon takes is the same if the next one takes it again, whoever has heard of
// it meanwhile. Every member's report counts, so the outcome does not depend on who is asked first.
//
// Where the session shrinks, members are in a roster. Each gathering makes the next one, of those
// who have come, if they are enough. Nobody is READY in a roster that some of its members have not
// heard of, and nobody who has answers the daemon of an earlier one. Means are of those in the
// roster, so that with another one all begin the step again from their gradients. It is dropped if
// somebody has seen results of the earlier ones already, or is in a broadcast or barrier, which
// lost members may have been in.
//
// They need a majority, unless rosters are claimed at an arbiter (RosterClaims). Then what a
// roster's members are told with it holds for those who gather next, heard or not: nothing else
// would, where those who have heard it do not come.
//
// A rank whose member was lost may have a newcomer, which has no report. What the lost one has said
// is in the others' reports as far as it matters: nothing was concluded unless they are READY. But
// a newcomer has no gradients for the open step, and no model. So where there are newcomers, the
// step that is then open is dropped, for everybody, and with it everybody hears of them.
//
// In a session with node groups a step of which anything was sent does not go on: a group may have
// gathered some of its buckets, which lie over the gradients, and connects anew. Nor does any in
// another roster, and the same where there are leaf daemons: gradients have weights by who is
// there, and members behind leaves hear of the others with a step that is dropped.
//
// Where the session has several shards, all are left after the loss of one, as if they were one
// daemon. The members report to shard 0 what they hold at all of them; the others begin where they
// are told that shard 0 has begun.
//
// Not thread-safe. No clock, no I/O. Ranks are in [0, world_size).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/frame.h"
#include "proto/wire/member_report.h"

namespace gradwire::server {

class Gathering {
 public:
  // Whose session it is, as the first member's join says. A member with another key or lineage is
  // refused: a fresh daemon believes what the whole world presents alike.
  // `follows`: members bring along what shard 0 has decided, so that there is nothing to decide.
  Gathering(std::string session_key, std::uint64_t lineage, int world_size, bool shrinks = false,
            bool follows = false)
      : session_key_(std::move(session_key)),
        lineage_(lineage),
        shrinks_(shrinks),
        follows_(follows),
        reports_(static_cast<std::size_t>(world_size)),
        gone_(static_cast<std::size_t>(world_size)),
        left_(static_cast<std::size_t>(world_size)),
        leaf_of_(static_cast<std::size_t>(world_size), -1) {}

  // PermissionDenied: the report is of another session, or of one with another arbiter.
  absl::Status Check(const wire::MemberReport& report) const;

  // A later report of the rank replaces the earlier one. None: it is a newcomer's.
  void Take(int rank, std::optional<wire::MemberReport> report);

  // The session has node groups, or has had some of several members. Before Decide.
  void SetGrouped(bool grouped) { is_grouped_ = grouped; }

  // A process has come for the rank: a trainer, or a leaf daemon, which stands and reports for so
  // many ranks from there on. Before Take.
  void SetPlace(int rank, std::optional<int> leaf_ranks);

  // When all ranks are taken: nobody has been in the session, which begins as any other.
  bool AllNew() const;
  // Into how many shares the session's node groups divide the parameters: the most that any report
  // says; 1: it has no groups; 0: it begins.
  std::uint32_t Shares() const;
  // FailedPrecondition: reports say different numbers, and the error names two ranks.
  absl::Status CheckShares() const;
  // Whether the rank's process has been in the session.
  bool HasReport(int rank) const { return reports_[static_cast<std::size_t>(rank)].has_value(); }

  // Whether it reports, and is no newcomer.
  bool HasModel(int rank) const {
    return HasReport(rank) && !reports_[static_cast<std::size_t>(rank)]->newcomer;
  }

  // ---- Where the session shrinks

  // It goes on without the rank, which counts as taken until it is.
  void SetGone(int rank);
  // Rosters are claimed at that arbiter; see SessionOptions.
  void Arbitrate(std::uint64_t arbiter, bool may_be_minority) {
    arbiter_ = arbiter;
    may_be_minority_ = may_be_minority;
  }
  // Whether these, ascending, are enough to go on without the others: `least`, and a majority of
  // those who concluded the last step, unless they may be a minority. Newcomers do not count, and
  // members behind leaves do.
  bool IsQuorum(const std::vector<int>& here, int least) const;
  // Of a shard that follows: whom shard 0 has begun with. Null: nobody has said so yet.
  const std::vector<int>* Followed() const;
  // The number of the last roster that a member has heard of; 0: of none.
  std::uint64_t LatestNumber() const;
  // Somebody may have been told so with a roster that was claimed, and nobody here has. Later
  // outcomes begin with it.
  void Assume(std::span<const wire::StepDone> ended);
  // Whom the others have gone on without: their reports say nothing, and they have an old model.
  std::vector<int> LeftBehind() const;

  struct Outcome {
    std::int64_t step = 0;  // that is open now
    bool again = false;     // it goes on although some may have results: they keep gradients
    // How steps before it ended, in order, for members that have not seen it.
    std::vector<wire::StepDone> ended{};
    // Who is new, or that members are gone; also in the last of `ended`. The hook's iteration is
    // not known here.
    std::optional<wire::MembershipChange> change{};
    std::vector<int> fresh{};              // newcomers that have not been in the session at all
    std::vector<int> here{};               // whose processes take part from now on, ascending
    std::uint64_t collectives = 0;         // that are over for all members
    std::vector<bool> through{};           // by rank: one more is, for this one
    int donor = 0;                         // the lowest rank that has the model
    std::optional<wire::Roster> roster{};  // that begins; none: the session does not shrink
    std::uint64_t life = 0;                // of several shards: the least that may begin
    std::uint64_t chain = 0;               // before `step` (wire::StepChain); 0: unknown
  };
  // When all ranks are taken, and not all are new. FailedPrecondition: reports contradict each
  // other, and the error names two ranks that do, or nobody has the model; no member may go on.
  absl::StatusOr<Outcome> Decide() const;

  // If the session cannot go on: the ends of steps that members who are here have seen, or were to
  // be told, for all who report and are no newcomers. None: nobody has, reports contradict each
  // other, or they have rosters: where a session shrinks, those who are not here may go on
  // otherwise.
  std::vector<wire::StepDone> Known() const;

  // Members are being told, before the session goes on: this holds, whoever is lost meanwhile.
  // Later outcomes begin with it.
  void Tell(const Outcome& outcome);

 private:
  // Steps that a member may not have heard the end of. Each but the first was dropped, with a
  // daemon or a member.
  static constexpr std::int64_t kMostMissed = 64;

  struct Reporter {
    int rank = 0;
    const wire::MemberReport* report = nullptr;
  };
  using Reporters = std::vector<Reporter>;  // by rank

  absl::StatusOr<Outcome> FollowThoseAhead(const Reporters& all, std::int64_t step) const;
  absl::StatusOr<Outcome> FollowThoseFarAhead(const Reporters& all, std::int64_t step,
                                              std::int64_t apart) const;
  absl::StatusOr<Outcome> DecideTogether(const Reporters& all, std::int64_t step) const;
  absl::StatusOr<Outcome> Follow(const Reporters& all) const;
  std::uint64_t HighestLife() const;
  absl::Status DecideCollectives(Outcome& outcome) const;
  bool IsHalfGathered(std::int64_t step) const;
  // The member's, or that of its leaf.
  const std::optional<wire::MemberReport>& ReportFor(int rank) const;
  bool HasOrHadLeaves() const;
  // Whether any rank lacks the model, or may lack it.
  bool HasNewcomers() const;
  const wire::MemberReport* Latest() const;  // in the latest roster; null: there is no roster
  std::vector<int> RanksOf(const wire::MemberReport* report) const;  // of its roster
  std::vector<int> ProcessesHere() const;
  std::vector<int> RanksHere() const;  // of the next one: these, and those behind leaves
  // Whether that has other ranks than some are in.
  bool Moves() const;
  // Whether that has other ranks than members behind leaves were told last.
  bool WasToldOthers() const;
  bool CanGoOn(std::int64_t step) const;
  bool CannotFollow(const wire::MemberReport& report) const;
  bool Lacks(const wire::MemberReport& report) const;
  bool IsMajority(const std::vector<int>& here, const std::vector<int>& reporters,
                  const wire::MemberReport& furthest) const;
  static void Advance(wire::MemberReport& report, std::span<const wire::StepDone> ended);
  void Hear(wire::MemberReport& report, std::span<const wire::StepDone> ended) const;
  absl::Status TakeIn(Outcome& outcome) const;
  // Of all members' chains. Returns who has another one; "": nobody.
  static std::string DecideChain(const Reporters& all, Outcome& outcome);

  const std::string session_key_;
  const std::uint64_t lineage_;
  const bool shrinks_;
  const bool follows_;
  bool is_grouped_ = false;
  std::uint64_t arbiter_ = 0;
  bool may_be_minority_ = false;
  std::vector<std::optional<wire::MemberReport>> reports_;  // by rank; none: a newcomer's
  std::vector<bool> gone_;                                  // by rank
  std::vector<bool> left_;    // by rank: it cannot follow what the others were told
  std::vector<int> leaf_of_;  // by rank: the first one of its leaf; -1: it is a trainer
  std::vector<wire::StepDone> told_;
  std::optional<std::int64_t> told_step_;  // that goes on, or begins
  std::optional<wire::MembershipChange> told_change_;
  std::vector<int> told_ranks_;  // who was there then
};

}  // namespace gradwire::server

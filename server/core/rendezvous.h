// How a session's members come together, before it runs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/effects.h"
#include "server/core/failure_policy.h"
#include "server/core/gathering.h"
#include "server/core/roster_claims.h"
#include "server/core/session_options.h"

namespace gradwire::server {

// Not thread-safe. `options` and `membership` outlive it.
class Rendezvous {
 public:
  Rendezvous(const SessionOptions& options, Membership& membership, absl::Time now)
      : options_(options),
        membership_(membership),
        created_(now),
        began_(now),
        asks_(static_cast<std::size_t>(options.world_size)) {
    if (options.gathers) {
      gathering_.emplace(options.session_key, options.lineage, options.world_size,
                         options.shrinks(), options.follows());
      gathering_->Arbitrate(options.arbiter, options.may_be_minority);
      if (options.claims()) claims_.emplace();
    }
  }

  // Takes a rank, also for a process that has it already and asks again, at any time.
  absl::StatusOr<int> Join(const JoinAsk& ask, absl::Time now, Effects& effects);
  // Whether the process belongs to the session: in one that gathers its members again, all that
  // have a report, and successors of lost ones that name their rank; in others, those that begin.
  // At any time.
  absl::Status CheckReport(const JoinAsk& ask) const;
  // FailedPrecondition: a newcomer to a session with node groups fits into none. At any time.
  absl::Status CheckGroup(int rank, const GroupAsk& ask, bool is_leaf) const;
  // Whether a member of this session comes in a later life of it than this one.
  bool IsOver(const JoinAsk& ask) const;

  // Call the following only before the session runs.

  // A process asked to join with a different hook, model or world size, or without a report.
  MaybeFailure OnWrongJoin(const JoinAsk& ask, const absl::Status& difference);
  void Leave(int rank, Effects& effects);
  // Frees the ranks of lost members. Fails when the join timeout has passed.
  MaybeFailure Tick(absl::Time now, Effects& effects);
  // The process has come to members that have been in the session, and has not.
  bool IsNewcomer(int rank) const {
    return gathering_ && !gathering_->AllNew() && !gathering_->HasReport(rank);
  }
  // Newcomers that are here and fit into no group of the session, with the reason.
  std::vector<std::pair<int, absl::Status>> Misfits() const;
  // All members are connected. Fails if they cannot be grouped as they ask.
  absl::StatusOr<NodeGroups> Group() const;
  // What follows from the members' reports, who are in these groups; none: they have begun here.
  absl::StatusOr<std::optional<Gathering::Outcome>> Gathered(const NodeGroups& groups);
  // As Gathering's, of those who are connected.
  void Tell(const Gathering::Outcome& outcome) {
    gathering_->Tell(outcome);
    has_told_ = true;
  }
  std::vector<int> LeftBehind() const;
  // The claims of others keep those who are here from going on, who are enough otherwise.
  bool WaitsForOthers() const { return claims_ && claims_->waits(); }
  bool AllNew() const { return gathering_->AllNew(); }
  // As Gathering's, also if there is nothing to gather; and who is to hear them.
  std::vector<wire::StepDone> Known() const;
  std::vector<int> Reporters() const;  // connected, and no newcomers
  bool HasQuorum(int least);
  // The session shrinks, and those who are here may go on without the others now.
  bool MayShrink(absl::Time now);
  // It goes on without the rank, and those behind it; unless they come before the session runs.
  void SetGone(int rank);
  // Waits for all ranks again. False: none is gone.
  bool AwaitGone();
  // Welcomes them, and newcomers as such, by rank.
  void Complete(const NodeGroups& groups, const wire::Welcome& welcome,
                const std::map<int, wire::MembershipChange>& newcomers, Effects& effects);

  // ---- Where rosters are claimed at an arbiter

  enum class Claimed : std::uint8_t {
    kYes,    // or it need not be
    kNo,     // an answer is awaited
    kAgain,  // members have to follow an earlier claim: what they gathered is to be asked for again
  };
  // Before anybody is told of `gathered`, or of the first roster of those who begin: its roster
  // then has the claim's number.
  Claimed Claim(std::optional<Gathering::Outcome>& gathered, Effects& effects);
  // The roster of those who begin has it.
  std::uint64_t first_number() const { return first_number_; }
  // False: others have gone on from what members here were told, who have to report anew.
  bool OnClaimed(const absl::StatusOr<ClaimAnswer>& answer, Effects& effects);
  // As RosterClaims's. Before that it is not known who may go on, and from where.
  bool KnowsClaims() const { return !claims_ || claims_->IsUpToDate(); }
  std::string ClaimWaits() const { return claims_ ? claims_->WaitingFor() : ""; }

  // Why a rank was given up last: "rank 0 left". "": none was.
  const std::string& last_departure() const { return last_departure_; }

 private:
  absl::Status CheckLife(const JoinAsk& ask) const;
  // It was to go on without the ranks that a process now comes for.
  void ComeAfterAll(const JoinAsk& ask);
  MaybeFailure OnClaimTimeout() const;
  // The others' claims allow it to those who are here.
  bool MayFollowClaims() const;
  std::vector<std::uint64_t> ProcessesOf(const std::vector<int>& ranks) const;
  // All with whom shard 0 has begun are here.
  bool MayFollow() const;

  const SessionOptions& options_;
  Membership& membership_;
  const absl::Time created_;
  absl::Time began_;  // to wait: anew for each member that is lost meanwhile, and no newcomer
  std::vector<GroupAsk> asks_;  // by rank
  std::string last_departure_;
  struct WrongJoin {
    int rank = -1;
    std::string what;
  };
  WrongJoin wrong_join_;  // the last that came for a rank which members who gather wait for
  std::optional<Gathering> gathering_;  // where members bring reports
  std::optional<RosterClaims> claims_;  // where rosters are claimed
  bool claims_fail_ = false;            // the last answer was an error
  std::uint64_t first_number_ = 1;
  bool has_told_ = false;
  bool is_complete_ = false;
};

}  // namespace gradwire::server

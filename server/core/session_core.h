// One training session as a deterministic state machine: (event, now) -> effects.
//
// Knows no gRPC, clock, thread or disk. The same object runs in the daemon, in the simulation and
// under the fuzzer. Not thread-safe: the owner serialises all calls. Nothing that a member sends
// can abort the process; it ends in a Failure for the session (policy `fail`) that blames the
// sender.
//
// This class dispatches events and ends the session. Membership tracks ranks and leases; Rendezvous
// brings the members together; Step runs the step protocol, with buckets, rounds and shared state
// below it; CollectiveFlow runs broadcasts and barriers; FindTimeout finds those that are too late;
// Decide (failure_policy.h) decides about faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "hooks/reduce.h"
#include "server/core/effects.h"
#include "server/core/failure_policy.h"
#include "server/core/gathering.h"
#include "server/core/hook_state.h"
#include "server/core/leavers.h"
#include "server/core/session_options.h"
#include "server/core/session_state.h"
#include "server/core/step_timeline.h"
#include "server/core/wait_log.h"

namespace gradwire::server {

class CollectiveFlow;
class DrawPlanIntake;
class HandOverRelay;
class Rendezvous;
class StateRecovery;
class Step;

class SessionCore {
 public:
  using State = SessionState;
  using MemberState = server::MemberState;

  // `options` must be valid. `hook` is null for a custom hook.
  SessionCore(SessionOptions options, std::unique_ptr<CoordinatorHook> hook, absl::Time now);
  ~SessionCore();

  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;

  // Reserves a rank and returns it. The same start id gets its rank again. A request for a missing
  // rank with a different hook, model or world size ends a session that is still joining. `same` is
  // the result of options().CheckSame(ask), which takes time in proportion to the manifest.
  absl::StatusOr<int> Join(const JoinAsk& ask, const absl::Status& same, absl::Time now,
                           Effects& effects);

  // Whether a join with this start id would get the rank that it has, or had.
  bool HasPlace(std::uint64_t start_id) const;

  // A stream whose Hello carried this rank's token. `connection` is unique among streams. Replaces
  // the member's earlier stream, if any.
  // `abilities`: what its Hello says of the member's client.
  absl::Status Attach(int rank, std::uint64_t start_id, std::int64_t step, std::uint64_t connection,
                      absl::Time now, Effects& effects, const Abilities& abilities = {});

  // A frame from the stream `connection`. Ignored if that is no longer the member's stream.
  void Receive(int rank, std::uint64_t connection, const wire::Frame& frame, absl::Time now,
               Effects& effects);

  // The stream ended without Leave.
  void Detach(int rank, std::uint64_t connection, absl::Time now, Effects& effects);

  absl::Status Leave(int rank, std::uint64_t start_id, absl::Time now, Effects& effects);

  // The answer to a ReduceEffect. `result` has the segment's bytes.
  // `spent` is the time of the sum, for the report.
  void Reduced(const wire::RoundId& id, std::uint32_t chunk, const ResultRef& result,
               const ReduceOutcome& outcome, absl::Duration spent, Effects& effects);

  // The answers to UpstreamEffects: the root's session has begun, has concluded the step, and what
  // comes of a collective. FailElsewhere: it has ended, or could not be joined.
  void UpstreamJoined(const UpstreamWelcome& welcome, Effects& effects);
  // Why the root has not answered yet; "": it has, and other members are missing there.
  void UpstreamWaits(const std::string& why) { upstream_waits_ = why; }
  void UpstreamConcluded(std::int64_t step, const UpstreamConclusion& conclusion, absl::Time now,
                         Effects& effects);
  void UpstreamGoesOn(const UpstreamProgress& progress, absl::Time now, Effects& effects);
  void FailElsewhere(const absl::Status& status, int blamed_rank, Effects& effects);

  // The answer to a ClaimRosterEffect.
  void RosterClaimed(const absl::StatusOr<ClaimAnswer>& answer, Effects& effects);

  // The answers to a ComputeEffect, after its work has run, and to a ChoreEffect.
  void Computed(const wire::RoundId& id, SharedStateWork& work, Effects& effects);
  void ChoreDone(Effects& effects);

  // What a RestoreEffect asks for, on any thread, and its answer.
  absl::StatusOr<std::shared_ptr<HookImport>> ReadCopy(const RestoreEffect& restore) const {
    return hook_state_.ReadCopy(restore.files);
  }
  void Restored(const absl::StatusOr<std::shared_ptr<HookImport>>& state, Effects& effects);

  // The hook's state after the last step, whether or not the next has begun.
  absl::StatusOr<StateSnapshot> Export() const;
  // An exported state replaces the hook's state between two steps, before any member has announced
  // a bucket of the next one. ReadState does the long work: after CheckImport has returned OK, it
  // may run on any thread, at any time. Install checks again, since a step may have begun since.
  // `shards` is how many daemons are given the state.
  absl::Status CheckImport(std::uint32_t shards = 1) const;
  absl::StatusOr<std::shared_ptr<HookImport>> ReadState(const HookState& state) const {
    return hook_state_.ReadState(state);
  }
  absl::Status Install(HookImport& import, Effects& effects, std::uint32_t shards = 1);
  const SessionHookState& hook_state() const { return hook_state_; }
  // The step's number, attempt, statistics and reports.
  const Step& progress() const { return *step_; }

  // Nothing has happened until `now`: whoever was waited for caused this wait (see WaitLog). Call
  // it before each other event; without it the session runs, and keeps no such log.
  void Observe(absl::Time now);
  const WaitLog& waits() const { return waits_; }
  std::string Slow() const { return WhoIsSlow(waits_, membership_); }

  // An operator holds the session back before its next step: see StepGate. A second pause replaces
  // the first one's time and reason. FailedPrecondition: it does not run, or is not paused.
  absl::Status Pause(absl::Duration length, const std::string& reason, absl::Time now,
                     Effects& effects);
  absl::Status Unpause(absl::Time now, Effects& effects);

  // Records the next `steps` steps that nobody has begun, until `deadline`. AlreadyExists: somebody
  // records. FailedPrecondition: the session has ended. InvalidArgument: so many are not allowed.
  // Without Observe the recorder knows no time.
  absl::Status BeginTimeline(int steps, absl::Time deadline, absl::Time now);
  // Null: nobody records.
  const StepTimeline* timeline() const { return timeline_.get(); }
  std::unique_ptr<StepTimeline> TakeTimeline() { return std::move(timeline_); }

  // Timeouts, and the end of a pause. Call about every 100 ms.
  void Tick(absl::Time now, Effects& effects);

  // Ends a session here that outlives its daemon, or has not begun, because the daemon is about to
  // end: members lose their streams, and go on with the next daemon. Others stay.
  void HandOver(Effects& effects);

  // Ends the session for all members.
  void Fail(const absl::Status& status, int blamed_rank, Effects& effects);

  const SessionOptions& options() const { return options_; }
  State state() const { return state_; }
  // It is closed because a member or a shard was lost, and another session is to gather its
  // members.
  bool awaits_successor() const { return awaits_successor_; }
  MemberState member_state(int rank) const { return membership_.state(rank); }
  // Or gone.
  bool IsElsewhere(int rank) const { return membership_.IsElsewhere(rank); }
  // Of a session that awaits successors: those that it does not wait for, where it shrinks.
  const std::vector<int>& gone() const { return gone_; }
  // By rank: the first one of its node group. Empty: not known.
  const std::vector<int>& node_groups() const { return node_groups_; }
  std::int64_t step() const;
  // Of a leaf daemon: its name, and the ranks that it stands for. "" and 1: it is a trainer.
  const std::string& leaf_name(int rank) const { return membership_.leaf_name(rank); }
  int ranks(int rank) const { return membership_.ranks(rank); }
  absl::Time last_heard(int rank) const { return membership_.last_heard(rank); }
  const absl::Status& failure() const { return failure_; }
  int blamed_rank() const { return blamed_rank_; }  // for the failure; -1: nobody
  // Why a rank was given up last while the session was joining: "rank 0 left".
  const std::string& last_departure() const;

  // Of members that are here: those that keep no account (Ledger::Silent).
  std::vector<int> LedgerSilent() const;

  // One sentence: what the session waits for, and for whom.
  std::string WaitingFor(absl::Time now) const;

  // Payload bytes that the session holds now: contributions not yet reduced, results not
  // acknowledged.
  std::size_t held_bytes() const;

 private:
  absl::Status CheckOpen() const;
  // If everybody is here. `rank` came last; -1: nobody.
  void MaybeBegin(int rank, Effects& effects);
  // Before the session runs.
  void ReceiveEarly(int rank, const wire::Frame& frame, Effects& effects);
  // What members need to go on with another daemon after this one; none: they cannot.
  std::optional<wire::Recovery> NewRecovery() const;
  // From where another daemon's session was.
  void GoOn(const Gathering::Outcome& gathered, Effects& effects);
  void GoOnFromUpstream();
  void Heal(const Gathering::Outcome& gathered, Effects& effects);
  wire::MembershipChange ToTell(wire::MembershipChange change) const;
  // Whether another process may come for a member that is lost; and that one is waited for.
  absl::Status CheckLeavesGoOn(const std::optional<Gathering::Outcome>& gathered) const;
  // session_groups.cc
  absl::Status CheckWeights(const std::string& leaf, int ranks) const;
  // Sends newcomers away that fit into no node group, and leaves that cannot be beside the others.
  // True: there were any.
  bool DismissMisfits(Effects& effects);
  void Dismiss(int rank, const absl::Status& refused, Effects& effects);
  // Newcomers that are in other node groups than those whose places they take. True: there are any.
  bool DismissMisplaced(const NodeGroups& groups, const Gathering::Outcome& gathered,
                        Effects& effects);
  // Lost members get successors, or the others go on without them.
  bool OutlivesMembers() const;
  bool MayReplace(const FailureEvent& failure) const;
  void AwaitSuccessor(const FailureEvent& failure, Effects& effects);
  // The others gather, because they need a member that has left.
  void DoWithout(int left, Effects& effects);
  // The answer to a process that was refused a rank: Unavailable if its predecessor may be dead, or
  // if the session goes on without it, and will take it in.
  absl::Status AskAgain(const JoinAsk& ask, const absl::Status& refused, Effects& effects);

  // ---- A session that goes on without lost members (session_shrink.cc)
  // If those who gather are enough, and the others do not come.
  void MaybeShrink(absl::Time now, Effects& effects);
  // Whether those who have gathered may begin: who was left behind is sent away.
  bool MayGoOn(Effects& effects);
  // Before the session fails: how steps ended that members here have seen, for those who have not.
  void TellWhatIsKnown(Effects& effects) const;
  // A member comes back that has reported to another daemon meanwhile.
  bool ComesBack(const JoinAsk& ask) const;
  // To a process that comes for a rank that is gone.
  absl::Status TakeInLater(const JoinAsk& ask);
  // It is asked to try again. RankTaken: it stands for more than who is gone.
  absl::Status AddComer(const JoinAsk& ask);
  // A step has ended: takes in who has come meanwhile.
  void MaybeTakeIn(Effects& effects);
  // All members gather again, without `lost`; -1: nobody is.
  void GatherAgain(int lost, Effects& effects);
  std::string NoQuorum() const;
  // Members have to look for the session elsewhere.
  void Close(Effects& effects);
  MaybeFailure Dispatch(int rank, const wire::Frame& frame, absl::Time now, Effects& effects);
  MaybeFailure OnFailureElsewhere(int rank, const wire::Failure& failure, Effects& effects);
  MaybeFailure OnGatherAgain(int rank, const wire::GatherAgain& again, Effects& effects);
  MaybeFailure OnHandOver(int rank, const wire::HandOver& piece, const wire::PayloadRef& payload,
                          Effects& effects);
  MaybeFailure OnHandOverAnswer(int rank, const wire::HandOverAnswer& answer, Effects& effects);
  // Of a member that no step needs.
  void LeaveRunning(int rank, absl::Time now, Effects& effects);
  void LetLeave(absl::Time now, Effects& effects);
  absl::Status AskToLeave(int rank, absl::Time now, Effects& effects);
  // All leavers but `lost`, who is; -1: nobody is.
  void LetAllLeaversGo(int lost, Effects& effects);
  // Those leavers that nobody needs any more.
  void LetLeaversGo(absl::Time now, Effects& effects);
  void EndPause(const std::string& why, absl::Time now, Effects& effects);
  void Apply(const MaybeFailure& failure, Effects& effects);
  // For the recorder, if there is one: the effects from `first` on.
  void Record(const Effects& effects, std::size_t first);

  const SessionOptions options_;
  SessionHookState hook_state_;
  State state_ = State::kJoining;
  absl::Status failure_;
  int blamed_rank_ = -1;
  Membership membership_;
  const std::unique_ptr<Rendezvous> rendezvous_;
  const std::unique_ptr<Step> step_;
  const std::unique_ptr<CollectiveFlow> collectives_;
  const std::unique_ptr<DrawPlanIntake> draw_plan_;
  const std::unique_ptr<HandOverRelay> hand_overs_;
  WaitLog waits_;
  // Of a leaf: the root's session.
  bool upstream_asked_ = false;
  std::optional<UpstreamWelcome> upstream_welcome_;
  std::string upstream_waits_;
  std::unique_ptr<StateRecovery> state_recovery_;  // null: there is nothing to be taken back
  // That were not heard yet: their Welcome may be lost. By rank.
  std::map<int, wire::MembershipChange> newcomers_;
  bool awaits_successor_ = false;
  std::vector<int> gone_;                   // where that is so, and the session shrinks
  std::vector<int> node_groups_;            // by rank, the first one of its group
  std::set<int> comers_;                    // ranks that are gone, for which processes have come
  std::set<int> leaving_;                   // ranks that leave when the step is concluded
  Leavers leavers_;                         // of a session that outlives its daemon
  std::unique_ptr<StepTimeline> timeline_;  // null: nobody records
};

}  // namespace gradwire::server

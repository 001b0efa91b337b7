// The step protocol: one optimizer iteration after another, each all or nothing.
//
// A member announces a bucket, is granted it, and contributes to its rounds; it may end the step.
// When all parameters are reduced, or all members ended the step, the step is over in three
// moments:
// * prepared: all results are there, so that the verdict is known;
// * held: a member has all of them, and could go on alone with what it has;
// * concluded: the hook's state and the step number change, and members are told to apply
// (StepDone). One daemon concludes as soon as the step is prepared, because no one else has a say,
// and lets go of results when all members hold them. Several shards conclude only when the members
// hold the results of all of them (Agreement); recovery will ask members which moment they saw.
//
// A member with a new stream receives again what it has not acknowledged. Rounds that no reduction
// has begun start over as a new attempt.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/core/agreement.h"
#include "server/core/bucket_reports.h"
#include "server/core/bucket_table.h"
#include "server/core/chores.h"
#include "server/core/group_flow.h"
#include "server/core/own_state_sending.h"
#include "server/core/round_flow.h"
#include "server/core/skip_blame.h"
#include "server/core/step_gate.h"
#include "server/core/step_records.h"

namespace gradwire::server {

class StepDigests;

// Not thread-safe. All that it refers to outlives it; `hook` may be null.
class Step {
 public:
  Step(const SessionOptions& options, const Membership& membership, CoordinatorHook* hook);
  ~Step();

  MaybeFailure OnAnnounce(int rank, const wire::Announce& announce, const wire::PayloadRef& payload,
                          absl::Time now, Effects& effects);
  MaybeFailure OnContribution(int rank, const wire::Contribution& header,
                              const wire::PayloadRef& payload, Effects& effects);
  MaybeFailure OnAck(int rank, const wire::Ack& ack, Effects& effects);
  MaybeFailure OnEndStep(int rank, const wire::EndStep& end, absl::Time now, Effects& effects);
  MaybeFailure OnParameterDigest(int rank, const wire::ParameterDigest& digest, Effects& effects);
  MaybeFailure OnLedgerAccount(int rank, const wire::LedgerAccount& account, Effects& effects);
  // Of a session with several shards, or one that outlives its daemon.
  MaybeFailure OnReady(int rank, const wire::Ready& ready, Effects& effects);
  MaybeFailure OnConcluded(int rank, const wire::Concluded& concluded, Effects& effects);
  MaybeFailure OnGroupBucket(int rank, const wire::GroupBucket& bucket, absl::Time now,
                             Effects& effects);
  MaybeFailure OnGroupId(int rank, const wire::GroupId& id, Effects& effects) {
    return groups_.OnId(rank, id, effects);
  }

  // As SessionCore::Reduced.
  void OnReduced(const wire::RoundId& id, std::uint32_t chunk, const ResultRef& result,
                 const ReduceOutcome& outcome, absl::Duration spent, Effects& effects);

  // Of a leaf: the root has concluded the step.
  void OnUpstreamConcluded(std::int64_t step, const UpstreamConclusion& conclusion,
                           Effects& effects);

  // As SessionCore::Computed and ChoreDone.
  void OnComputed(const wire::RoundId& id, SharedStateWork& work, Effects& effects);
  void OnChoreDone(Effects& effects) { chores_.OnDone(effects); }

  // Who is late is told that the others go on without it (step_late.cc).
  void Tick(absl::Time now, Effects& effects);
  LateMembers& late() { return records_.late; }
  const LateMembers& late() const { return records_.late; }

  // An operator holds the session back before its next step (see StepGate), and lets it go on.
  void Pause(absl::Time until, const std::string& reason) {
    gate_.Pause(until, reason, began_.has_value());
  }
  void Unpause(absl::Time now, Effects& effects);
  const StepGate& gate() const { return gate_; }

  // All members are here; before any frame of theirs.
  void SetGroups(NodeGroups groups);
  // The session outlives this daemon (Agreement), and members are told so. As SetGroups.
  void Outlive(wire::Recovery recovery) {
    recovery_ = std::move(recovery);
    agreement_.AskForReady();
  }
  // The hook's state is the members'. As SetGroups. Some do not know what only the coordinator
  // does.
  void Restored() { own_state_.Restored(); }
  void TellOwnState() { own_state_.TellAgain(); }
  // The session had a daemon before this one: the step that is open, and how those before ended, of
  // which some member may not know; and the chain before the open one (wire::StepChain). As
  // SetGroups.
  void GoOnFrom(std::int64_t number, std::vector<wire::StepDone> ended, std::uint64_t chain);
  // What a Welcome at this step says, where the session outlives this daemon.
  std::optional<wire::Recovery> RecoveryAt(std::int64_t member_step) const;

  // Whether a member that is at this step can go on in the session.
  absl::Status CheckResumable(std::int64_t member_step) const;
  // Until Restarts: what the member lacks. Then collectives' part follows, and Grants. `change`: it
  // is a newcomer, and may not have been welcomed as one.
  void Resume(int rank, std::int64_t member_step,
              const std::optional<wire::MembershipChange>& change, Effects& effects);
  void GrantNext(Effects& effects);

  // No step is open. The member needs nothing more and acknowledges nothing more.
  void Leave(int rank, Effects& effects);
  // The members' state was replaced, between two steps.
  void ReplaceState() { shared_.Replace(); }
  // The session has ended. Members may still be reading results where they lie: they are kept.
  void End();

  std::int64_t number() const { return number_; }
  std::uint32_t attempt() const { return attempt_; }
  // When the first member began it; none: nobody has.
  std::optional<absl::Time> began() const { return began_; }
  bool HasEnded(int rank) const { return ended_[Index(rank)]; }
  const BucketTable& buckets() const { return table_; }
  // That a step may have; of several shards, on this one. 0: there are none.
  std::size_t parameters() const { return parameters_; }
  const RoundFlow& flow() const { return flow_; }
  const GroupFlow& groups() const { return groups_; }
  const Agreement& agreement() const { return agreement_; }
  // Only of the lead, where the session has several shards.
  const StepDigests& digests() const { return *digests_; }
  bool is_leaf() const { return options_.leaf.is_leaf(); }
  const std::string& last_skip() const { return last_skip_; }
  const std::string& last_drift() const { return records_.drift.last(); }
  void SetNewcomers(const std::vector<int>& ranks) { records_.ledger.SetNewcomers(ranks); }
  const Ledger& ledger() const { return records_.ledger; }
  bool outlives_daemon() const { return recovery_.has_value(); }
  // All results are out, and a member will say what the lead has decided.
  bool AwaitsConclusion() const { return !agreement_.leads() && agreement_.prepared(); }
  BucketReports& reports() { return reports_; }
  const BucketReports& reports() const { return reports_; }
  std::size_t held_bytes() const { return table_.held_bytes(); }

  // Of a seeded bug.
  void ReduceWithoutLost(Effects& effects);

 private:
  static std::size_t Index(int rank) { return static_cast<std::size_t>(rank); }

  MaybeFailure CheckEnded() const;
  MaybeFailure TakeAnnouncement(int rank, const wire::Announce& announce,
                                const wire::PayloadRef& payload, Effects& effects);
  void FixDrawPlan();
  absl::Status AddBucket(const wire::Announce& announce);
  // The member does something in this step.
  void Begin(int rank, absl::Time now);
  void Advance(Bucket& bucket, Effects& effects);
  // Of a leaf.
  void TellUpstream(const Bucket& bucket, Effects& effects) const;
  void AskUpstream(Effects& effects) const;
  // Null and no failure: the frame is of something that is over.
  Bucket* CurrentBucket(int rank, const wire::Contribution& header, MaybeFailure& failure);
  void SendGrant(Bucket& bucket, int rank, Effects& effects);
  void AcknowledgeEarlierSteps(int rank);
  // ---- Late members (step_late.cc)
  bool MayLeaveBehind() const;
  // Those that are late, and have not announced the bucket, of the open step.
  void TellMissed(Bucket& bucket, Effects& effects);
  void SendMissed(const Bucket& bucket, int rank, Effects& effects) const;
  // The member knows.
  void OnMissed(Bucket& bucket, int rank, Effects& effects);
  // What it needs to take results, and those that are out.
  void GrantResults(Bucket& bucket, int rank, Effects& effects);
  // To a member with a new stream.
  void ResumeMissed(Bucket& bucket, int rank, Effects& effects);
  // Those that have ended the step, or are late in it.
  std::vector<bool> EndedOrLate() const;
  void SendRestarts(Effects& effects);

  // Whether all results of the step are there.
  bool IsPrepared() const;
  std::uint64_t ResultsDigest() const { return table_.DigestOf(number_); }
  wire::Prepared PreparedFrame() const;
  std::string SkipReason() const;
  void MaybeConclude(Effects& effects);
  void Conclude(Verdict verdict, Effects& effects);
  // Releases the results and shared state that all members have acknowledged.
  void DropHeld(Effects& effects);

  const SessionOptions& options_;
  const Membership& membership_;
  CoordinatorHook* const hook_;
  const std::size_t parameters_;
  const std::shared_ptr<const Bucket::Common> common_;
  Chores chores_;
  SharedState shared_;
  StepGate gate_;
  RoundFlow flow_;
  BucketTable table_;
  GroupFlow groups_;
  Agreement agreement_;
  OwnStateSending own_state_;
  const std::unique_ptr<StepDigests> digests_;
  BucketReports reports_;
  std::int64_t number_ = 0;
  std::uint32_t attempt_ = 0;
  SkipBlame blame_;
  StepRecords records_;
  UpstreamConclusion upstream_;    // of a leaf's root
  bool awaits_draw_plan_ = false;  // some bucket does
  std::vector<bool> ended_;        // by rank
  std::optional<absl::Time> began_;
  std::vector<wire::StepDone> last_done_;  // of the last steps, in order
  std::string last_skip_;                  // "step 3: why"; "": none was skipped
  std::optional<wire::Recovery> recovery_;
  std::uint64_t next_order_ = 0;
  int lead_ = 0;            // whose first bucket of a step fixes the draw plan
  std::size_t chunks_ = 0;  // of the step's buckets
  std::vector<ResultRef> unread_;
};

}  // namespace gradwire::server

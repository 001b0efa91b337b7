// A member's side of one session as a deterministic state machine: calls and frames in, effects
// out. Knows no gRPC, clock, thread or socket. The SDK drives it, and so does the simulation.
//
// Its parts: OpenStep owns the buckets (BucketRun) and their commit, StepProtocol exchanges frames
// about them with the daemon, MemberCollectives handles broadcasts and barriers. This class
// dispatches calls and frames, and ends all parts together.
//
// Not thread-safe: the owner serialises all calls. Hook runs are called inline. Failure: an error
// from a frame ends the session; an error from a call that the caller could avoid changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/core/coordinator_copy.h"
#include "client/core/effects.h"
#include "client/core/hand_over.h"
#include "client/core/ledger_sending.h"
#include "client/core/member_collectives.h"
#include "client/core/member_options.h"
#include "client/core/open_step.h"
#include "client/core/step_protocol.h"
#include "proto/wire/member_report.h"
#include "proto/wire/step_chain.h"

namespace gradwire::client {

class Member {
 public:
  // `hook` outlives the member.
  Member(MemberOptions options, Hook* hook);

  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Begins a bucket of the current step. An error leaves the session as it was. The buffer stays
  // with the core until the BucketDoneEffect, `bucket` until the step's verdict.
  absl::Status StartBucket(Ticket ticket, GradBucket& bucket, Effects& effects,
                           const OpenStep::Begun& begun = {});

  // The coordinator writes this bucket's results over its contributions: they need no window, as
  // long as the stream lasts. Before its grant.
  void SendAhead(std::uint32_t id) { protocol_.SendAhead(id); }

  // The daemon may write results over gradients of this bucket from now on, told or untold.
  void Expose(std::uint32_t id) { protocol_.Expose(id); }

  // Its buckets are shares of a node group's, one of several. Before any bucket.
  void SetGroup(int group, int groups) { protocol_.SetGroup(group, groups); }
  // And it has results of its own shares only: whether all are here, the group knows.
  void SetInNodeGroup() { is_in_node_group_ = true; }

  // ---- Where this member is late, and others go on without it
  // A bucket of a trainer that is still in `step`, which is over. True: others have reduced it
  // without this member. It has the result, and its gradients are part of the next step.
  absl::StatusOr<bool> TakePast(std::int64_t step, const GradBucket& bucket) {
    return step_.TakePast(step, bucket);
  }
  // The trainer ends that step. An error names a bucket that it has not had.
  absl::Status EndPast(std::int64_t step) { return step_.missed().EndPast(step); }
  // Whether the trainer has begun that step.
  bool HasBegunPast(std::int64_t step) const { return step_.missed().HasBegun(step); }
  // As Hook::SetLossScale, for gradients that wait for the next step.
  void SetLossScale(double scale) { step_.late().SetLossScale(scale); }
  // As Hook::LoadState: they are of another state.
  void DropLate() { step_.late().Clear(); }
  std::int64_t missed_steps() const { return step_.missed_steps(); }
  const LateGradients& late() const { return step_.late(); }

  // What frames call a bucket: the manifest position of its first parameter. None: not one of the
  // session's.
  std::optional<std::uint32_t> BucketId(const GradBucket& bucket) const {
    return step_.BucketId(bucket);
  }

  // No more buckets in this step. StepDoneEffect follows.
  absl::Status EndStep(Effects& effects);

  // As Client::CheckParameters. An error leaves the session as it was.
  absl::Status CheckParameters(std::uint64_t digest, Effects& effects);

  // As Client::SetDrawPlan. An error leaves the session as it was.
  absl::Status SetDrawPlan(const DrawBuckets& buckets, Effects& effects);

  // Enters the next collective; returns its number. One at a time. FailedPrecondition, and nothing
  // has changed: the root is not in the session any more.
  absl::StatusOr<std::uint64_t> Enter(wire::CollectiveKind kind, int root, std::size_t bytes,
                                      Effects& effects);

  // For what a leaf's client does with the open one.
  MemberCollectives& collectives() { return collectives_; }

  void Receive(const wire::Frame& frame, Effects& effects);

  // A new stream took over; the Hello has been sent. Announces again what the coordinator may have
  // missed; chunks follow on its Restart.
  void Resumed(Effects& effects);

  // ---- A session that outlives its daemon

  // What a fresh daemon has to know, after this member has lost its own. Only with a Recovery in
  // the Welcome.
  wire::MemberReport Report() const;
  // A daemon has taken the report, and gave its session this generation; the Hello follows. What is
  // left of the open step is announced after its Welcome.
  void Rejoined(std::uint64_t generation);
  bool outlives_daemon() const { return recovery_.has_value(); }
  std::uint64_t lineage() const { return recovery_ ? recovery_->lineage : 0; }
  // Steps that were reduced again, from the start or in part, with kept gradients.
  std::int64_t steps_reduced_again() const { return reduced_again_; }
  // Who is in the session, by the last Welcome. Null: all ranks, always.
  const wire::Roster* roster() const {
    return recovery_ && recovery_->roster ? &*recovery_->roster : nullptr;
  }
  // Since Rejoined. Nothing may be sent but heartbeats.
  bool awaits_welcome() const { return awaits_welcome_; }

  // Of each round at most so many chunks go out beyond the results that are here: at least 1, and
  // at most as many as the session allows, with which it begins. What a larger one allows goes out
  // with the bucket's next result.
  void SetWindow(std::uint32_t chunks) { protocol_.SetWindow(chunks); }

  // Chunks from `large_chunk_bytes` on are handed out one at a time, so that what comes meanwhile
  // need not wait for all that a window allows. May turn out to be none. Only while has_chunks().
  bool has_chunks() const { return protocol_.has_chunks(); }
  void SendNext(Effects& effects) { protocol_.SendNext(effects); }

  // ---- Leaving before the others (member_leave.cc)

  // Gives `file`, the hook's State, to another member, which is asked under this `id`, not 0, and
  // then its late gradients, under the next one. Empty: there are no residuals. A HandedOverEffect
  // follows. Between two steps, and no further one begins until it is here.
  void HandOver(std::uint64_t id, std::vector<std::byte> file, Effects& effects);
  // Returns who has taken a part; -1: nobody.
  int CancelHandOver() { return giving_.Cancel(); }
  // Whether it is about to leave, and so takes nobody's residuals. A member that goes on with a
  // step or a collective is not: its hand-over is over, and its Leave is refused.
  void SetLeaving(bool leaving) { taking_.SetClosed(leaving); }

  // ---- Of a session with several shards: what this member says to its daemon (ShardVote)

  // All results of all shards are here. To shard 0, once for each step. Also of a session that
  // outlives its only daemon.
  void SayReady(Verdict verdict, std::uint64_t digest, Effects& effects);
  // Shard 0 has concluded the step, all of whose results are here unless it is dropped. To the
  // others; StepDoneEffect follows.
  void ConcludeAs(const StepDoneEffect& lead, Effects& effects);
  // A shard was lost, this one or another: its daemon is to end all streams, so that all members
  // gather again. Only if the session outlives its daemons.
  void AskToGather(std::uint32_t lost_shard, Effects& effects);
  // The session has ended on another shard, and ends here with the same status and blame.
  void FailElsewhere(const absl::Status& status, int blamed_rank, Effects& effects);

  // Ends everything open with `status`.
  void Fail(const absl::Status& status, Effects& effects);

  std::int64_t step() const { return step_.number(); }
  bool failed() const { return !failure_.ok(); }
  const absl::Status& failure() const { return failure_; }
  // "bucket [fc1.weight, …]: 3 of 25 results": what is open here, for messages.
  std::string Progress() const;
  // After the loss of a daemon: says that the open step's outcome is unknown, if this member was
  // READY, because others may have heard of one.
  absl::Status WithOutcome(absl::Status status) const;

 private:
  struct Received;  // one frame, by its kind

  // Until the Welcome of a further daemon, nothing may be sent to it; Resumed then says it again.
  void HoldBack(Effects& effects, std::size_t first) const;

  // The open step goes on with a further daemon, in another roster if it `moves`.
  absl::Status GoOn(bool moves, Effects& effects);
  // Means are of those who are in the roster. False: it is as before.
  absl::StatusOr<bool> Enroll(const wire::Welcome& welcome);
  absl::Status CheckRoot(int root) const;
  // Whether the daemon has seen the same steps as this member, which learns their chain if it does
  // not know it.
  absl::Status TakeChain(const wire::Welcome& welcome);
  bool keeps_gradients() const;
  void Conclude(const wire::StepDone& done, Effects& effects);
  std::vector<int> RanksAfter(const wire::StepDone& done) const;
  // With the end of the step, among the effects from `first` on.
  void TellRanks(const std::vector<int>& ranks, Effects& effects, std::size_t first);
  // Of a step that is concluded or dropped.
  void Forget(Verdict verdict);
  // A newcomer has not been in the steps before `number`, which were skipped.
  void MoveTo(std::int64_t number, std::int64_t iteration);

  MemberOptions options_;  // its parts see when another daemon changes the generation
  Hook* const hook_;
  OpenStep step_;
  StepProtocol protocol_;
  MemberCollectives collectives_;
  CoordinatorCopy coordinator_;
  LedgerSending ledger_;
  ResidualGiving giving_;
  ResidualTaking taking_;
  bool welcomed_ = false;
  std::optional<wire::Recovery> recovery_;
  bool awaits_welcome_ = false;  // of a further daemon
  bool is_in_node_group_ = false;
  bool has_leaves_ = false;             // the session, so that weights differ, or node groups
  std::vector<int> told_ranks_;         // of the roster that the user knows
  std::vector<int> concluded_;          // those of the one in which a step was concluded last
  std::optional<Verdict> last_;         // of the step before
  std::optional<Verdict> before_last_;  // of the one before that
  std::uint64_t skipped_ = 0;           // steps in a row, up to this one
  bool is_newcomer_ = false;            // and no step was applied since
  wire::StepChain chain_;               // of all steps that are over; of shard 0's member
  std::optional<wire::Ready> ready_;    // of the open step
  std::optional<std::uint64_t> first_digest_;  // of its results, where they are computed again
  std::int64_t reduced_again_ = 0;
  std::string prepared_reason_;                // of the open step: why the shard's verdict is SKIP
  std::optional<wire::Concluded> conclusion_;  // of the last step, for other shards
  std::optional<wire::GatherAgain> gather_again_;  // that was asked for
  absl::Status failure_;
  std::optional<int> blamed_rank_;  // by the daemon; none: this member
};

}  // namespace gradwire::client

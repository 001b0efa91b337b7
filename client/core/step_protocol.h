// The member's side of the step protocol with one daemon: announcements, grants, windows,
// acknowledgements, and what is sent again after a restart or on a new stream.
//
// It takes chunks from BucketRuns and passes results to them, and knows nothing of a hook's data.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/core/draw_plan_sending.h"
#include "client/core/eager_sending.h"
#include "client/core/effects.h"
#include "client/core/member_options.h"

namespace gradwire::client {

class BucketRun;
class OpenStep;

class StepProtocol {
 public:
  // Both outlive this.
  StepProtocol(const MemberOptions& options, OpenStep& step);

  // As Member::SetGroup.
  void SetGroup(int group, int groups) {
    contributor_ = group;
    contributors_ = groups;
    has_shares_ = true;
  }

  // The members whose mean it is, and this one's place among them. Before the open step's first
  // bucket, or before ReduceAgain.
  void SetMembers(int place, int members) {
    contributor_ = place;
    contributors_ = members;
  }

  // Announces a bucket of the open step, with its contribution where that may go eagerly.
  absl::Status Begin(BucketRun& run, Effects& effects);

  // The daemon writes this bucket's results over its contributions: they need no window, as long
  // as the stream lasts. Before its grant.
  void SendAhead(std::uint32_t bucket);

  // The daemon may write results over gradients of this bucket from now on, told or untold.
  void Expose(std::uint32_t bucket);

  // This member starts no more buckets in this step.
  void EndStep(Effects& effects);

  // Before the open step's first bucket; and again on a new stream.
  void TellParameters(std::uint64_t digest, Effects& effects);

  // Sends the plan, and again on a new stream until the daemon must have it.
  void SetDrawPlan(const DrawBuckets& buckets, Effects& effects);
  // The daemon's state was replaced, and its plan with it.
  void ForgetDrawPlan() { draw_plan_.Reset(); }

  // Frames. An error ends the session: the daemon broke the protocol, or a hook failed. What a
  // resume repeats has no effect but to be acknowledged again.
  absl::Status On(const wire::Grant& grant, Effects& effects);
  // step_protocol_late.cc
  absl::Status On(const wire::Missed& missed, Effects& effects);
  // The trainer has begun the step: answers what waited for that.
  absl::Status AnswerMissed(Effects& effects);
  absl::Status On(const wire::SharedState& state, const wire::Payload* payload);
  absl::Status On(const wire::Result& result, const wire::Payload* payload, Effects& effects);
  absl::Status On(const wire::Restart& restart, Effects& effects);
  // True: the daemon concludes the open step.
  absl::StatusOr<bool> On(const wire::StepDone& done);

  // A new stream took over; the Hello has been sent.
  void Resumed(Effects& effects);
  // Another daemon did, which knows nothing of this one's attempts. Resumed follows.
  void BeginAnew();
  // The open step goes on there: buckets that may have results, or all of them, begin again with
  // their kept gradients. False: there is none such. Resumed follows.
  absl::StatusOr<bool> ReduceAgain(bool all, Effects& effects);
  // Whether gradients of the open step may be overwritten by results.
  bool MayHaveResults() const;
  bool has_contributed() const { return contributed_; }

  // As Member::SetWindow.
  void SetWindow(std::uint32_t chunks) { window_ = chunks; }
  // Member::has_chunks.
  bool has_chunks() const { return !sending_.empty(); }
  void SendNext(Effects& effects);

  // The open step and those after it are skipped, so many, in a session that outlives its daemon.
  // Forget follows.
  void OnSkipped(std::int64_t steps) { draw_plan_.StepsSkipped(steps); }
  // The step's buckets are gone: it was concluded, or the session is over.
  void Forget();

  RoundContext context() const;
  bool IsGranted(std::uint32_t bucket) const;
  // "the coordinator sent …": an error that ends the session.
  absl::Status Violation(const std::string& what) const;

 private:
  struct Bucket {
    BucketRun* run = nullptr;
    std::uint32_t attempt = 0;  // of the open round
    bool granted = false;
    bool ahead = false;        // no window
    bool overwritten = false;  // results may lie over its gradients
  };

  // Of the open step; null: none.
  Bucket* Find(const wire::RoundId& id);
  void PromiseNotToAnnounce(std::uint32_t bucket, Effects& effects) const;
  wire::RoundId IdOf(const Bucket& bucket) const;
  wire::Announce AnnounceOf(const BucketRun& run);
  bool MayBeEager(const BucketRun& run) const;
  void SendEager(Bucket& bucket, Effects& effects);
  bool MaySend(const Bucket& bucket) const;
  void SendChunk(Bucket& bucket, Effects& effects);
  void SendChunks(Bucket& bucket, Effects& effects);
  absl::Status CheckResult(const Bucket& bucket, const wire::Result& result,
                           const wire::Payload* payload) const;
  // The result of a chunk that was missing is here.
  absl::Status OnTaken(Bucket& bucket, const wire::RoundId& id, Effects& effects);
  absl::Status Advance(Bucket& bucket, Effects& effects);

  const MemberOptions& options_;
  OpenStep& step_;
  int contributor_;  // what the hook takes for its rank and the world
  int contributors_;
  bool has_shares_ = false;  // its buckets are not those of all members
  std::uint32_t window_;
  EagerSending eager_;
  DrawPlanSending draw_plan_;
  std::optional<std::uint64_t> parameters_;           // their digest, in the open step
  bool contributed_ = false;                          // to the open step
  std::uint32_t attempt_ = 0;                         // of the open step
  std::uint32_t next_attempt_ = 0;                    // of the next one, as far as it is known
  std::map<std::uint32_t, Bucket> buckets_;           // of the open step
  std::deque<std::uint32_t> sending_;                 // of buckets_: may have a large chunk to send
  std::map<std::uint32_t, wire::Missed> unanswered_;  // of the open step, by bucket
};

}  // namespace gradwire::client

// The step that a member is in: its buckets, and their commit.
//
// The commit comes in two moments. The member *holds* the step's results when each of its buckets
// has all of its own: they are in the user's buffers, and the hook's state is what it was. The step
// is *concluded* when the verdict is there: only now may the state change, for all buckets at once,
// since until then a failure can still end the step for everybody.
//
// Not thread-safe. Knows no frames but for the effects that it reports to the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/core/effects.h"
#include "client/core/kept_gradients.h"
#include "client/core/late_gradients.h"
#include "client/core/member_options.h"
#include "client/core/missed_buckets.h"
#include "client/core/step_parameters.h"

namespace gradwire::client {

class BucketRun;

class OpenStep {
 public:
  // `options` and `hook` outlive this.
  OpenStep(const MemberOptions& options, Hook* hook);
  ~OpenStep();

  std::int64_t number() const { return number_; }
  // No bucket is here.
  bool empty() const { return buckets_.empty(); }
  // Whether the trainer has: a bucket may be here without it (Miss).
  bool has_begun() const;
  // Runs by BucketRun::id(); they stay where they are until the step is over.
  BucketRun* Find(std::uint32_t id) const;
  std::optional<std::uint32_t> BucketId(const GradBucket& bucket) const;

  struct Begun {
    bool measure = false;     // it should have norms
    std::uint32_t share = 0;  // of its node group's
    bool keep = false;        // its gradients, if there is a device
    bool missed = false;      // others reduce it without this member
  };
  // Begins a bucket. An error leaves the step as it was. Advance follows.
  absl::StatusOr<BucketRun*> Start(Ticket ticket, GradBucket& bucket, const Begun& begun,
                                   const RoundContext& context);

  // Goes on to the next round that has elements, where the open one is complete. A bucket that has
  // no more has its result: a BucketDoneEffect.
  absl::Status Advance(BucketRun& run, const RoundContext& context, Effects& effects);

  // Begins a bucket that IsKept once more, from its gradients, whatever results it has: the new run
  // replaces the old one. A caller who has heard that the bucket is done hears nothing more of it,
  // and its memory is left alone.
  absl::StatusOr<BucketRun*> StartAgain(std::uint32_t id, const RoundContext& context);
  bool can_keep() const { return kept_.on(); }
  bool IsKept(std::uint32_t id) const { return kept_.Has(id); }
  bool AllKept() const;

  // Whether a bucket is done for the caller.
  bool has_done() const;

  // ---- Where this member is late (open_step_late.cc)

  // Others reduce a bucket of the open step without this member: a run with a gradient of zero,
  // which takes the results. An error: it cannot be, with the step's other buckets.
  absl::StatusOr<BucketRun*> Miss(const std::vector<std::uint32_t>& parameters,
                                  const RoundContext& context);
  // A bucket of the trainer's. True: it is missed, its gradients are kept for the next step, and it
  // is done when the result is there. An error leaves the step as it was.
  absl::StatusOr<bool> TakeMissed(Ticket ticket, GradBucket& bucket, Effects& effects);
  // The same for a trainer that is still in a step that is over, whose result is there.
  absl::StatusOr<bool> TakePast(std::int64_t step, const GradBucket& bucket);
  MissedBuckets& missed() { return missed_; }
  const MissedBuckets& missed() const { return missed_; }
  LateGradients& late() { return late_; }
  const LateGradients& late() const { return late_; }
  // Steps that went on without some of this member's gradients.
  std::int64_t missed_steps() const { return missed_steps_; }
  // Of a seeded bug.
  void KeepAnnounced(std::uint32_t id);

  // The one with the lowest id that waits for results; null: none does.
  const BucketRun* FirstUnfinished() const;

  // Buckets that wait for results.
  std::size_t unfinished() const { return unfinished_; }
  bool holds_results() const { return unfinished_ == 0; }

  // This member begins no more buckets.
  void End() { ended_ = true; }
  bool ended() const { return ended_; }

  // The next step is open then. Only while holds_results().
  void Conclude(const wire::StepDone& done, Effects& effects);
  // The same with SKIP, although results are missing: the daemon was lost, and no member applies
  // the step. Buckets that wait are done, with whatever their buffers have.
  void Drop(const wire::StepDone& done, Effects& effects);
  // The open step is that one, and the hook at this iteration. It is dropped next.
  void MoveTo(std::int64_t number, std::int64_t iteration);
  // This member begins in the middle of a session, with this step and the hook at this iteration.
  void BeginAt(std::int64_t number, std::int64_t iteration);
  // The session is over: ends the buckets that wait with `status`.
  void Abort(const absl::Status& status, Effects& effects);

  // The coordinator's state was replaced, which happens between two steps only. False: there are
  // buckets. The same one again is no news: it is repeated after a resume.
  bool ResetState(std::int64_t iteration);
  // Whether it is the one that this step began with.
  bool IsRepeated(std::int64_t iteration) const {
    return last_reset_ == std::pair(number_, iteration);
  }

 private:
  struct Bucket {
    Ticket ticket = 0;
    std::unique_ptr<BucketRun> run;
    bool is_done = false;  // for the caller
  };

  void Clear();
  // Where they are in the manifest; empty: not all are as there.
  std::vector<std::uint32_t> Positions(const GradBucket& bucket) const;
  static void Finish(std::uint32_t id, Bucket& bucket, const absl::Status& status,
                     Effects& effects);

  const MemberOptions& options_;
  Hook* const hook_;
  StepParameters parameters_;
  std::int64_t number_;
  bool ended_ = false;
  KeptGradients kept_;    // outlives the runs
  MissedBuckets missed_;  // the same
  LateGradients late_;
  std::int64_t missed_steps_ = 0;
  std::map<std::uint32_t, Bucket> buckets_;
  std::size_t unfinished_ = 0;
  std::optional<std::pair<std::int64_t, std::int64_t>> last_reset_;  // step, iteration
};

}  // namespace gradwire::client

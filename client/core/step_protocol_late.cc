// Others reduce a bucket without this member.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutants.h"
#include "client/core/bucket_run.h"
#include "client/core/open_step.h"
#include "client/core/step_protocol.h"

namespace gradwire::client {

// What this member has announced before counts, as the daemon knows when it hears of it, before
// anything that is sent from here on: both sides ignore the frame then. Otherwise the answer is the
// promise that this member will not announce the bucket. Only after that is it reduced, so that no
// member has a result of which this one could not tell the next daemon.
absl::Status StepProtocol::On(const wire::Missed& missed, Effects& effects) {
  const std::uint32_t id = missed.parameters.front();
  if (missed.id.step < step_.number()) return absl::OkStatus();
  if (missed.id.step > step_.number() || missed.id.bucket != id) {
    return Violation(absl::StrCat("that bucket ", missed.id.bucket, " of step ", missed.id.step,
                                  " goes on without this member"));
  }
  if (step_.ended()) return absl::OkStatus();  // the daemon will say that buckets differ
  const auto known = buckets_.find(id);
  if (known != buckets_.end() && !known->second.run->options().missed) {
    if (IsActive(Mutant::kMissedCounted)) step_.KeepAnnounced(id);
    return absl::OkStatus();
  }
  if (!options_.misses_early && !step_.has_begun()) {
    unanswered_[id] = missed;
    return absl::OkStatus();
  }
  PromiseNotToAnnounce(id, effects);
  if (known != buckets_.end()) return absl::OkStatus();  // repeated after a resume
  // Announcements that would acknowledge them may not follow.
  for (const std::uint32_t done : eager_.TakeAcknowledged()) {
    const Bucket& bucket = buckets_.at(done);
    effects.push_back(SendFrameEffect{
        wire::Ack{.id = IdOf(bucket), .received = bucket.run->layout().chunk_count()}});
  }
  const absl::StatusOr<BucketRun*> run = step_.Miss(missed.parameters, context());
  if (!run.ok()) return run.status();
  Bucket& bucket = buckets_[id] = {.run = *run, .attempt = attempt_, .granted = true};
  if (!(*run)->holds_result() && !(*run)->is_round_complete()) return absl::OkStatus();
  return Advance(bucket, effects);  // nothing to reduce, at least in the first round
}

// Again on a new stream, where an EndStep may follow at once.
void StepProtocol::PromiseNotToAnnounce(std::uint32_t bucket, Effects& effects) const {
  effects.push_back(SendFrameEffect{wire::Ack{
      .id = {.step = step_.number(), .attempt = attempt_, .bucket = bucket}, .received = 0}});
}

// Its first bucket is announced by now.
absl::Status StepProtocol::AnswerMissed(Effects& effects) {
  for (const auto& [id, missed] : std::exchange(unanswered_, {})) {
    if (absl::Status status = On(missed, effects); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace gradwire::client

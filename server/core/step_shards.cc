// What a step does in a session with several shards.
#include "absl/strings/str_cat.h"
#include "server/core/step.h"

namespace gradwire::server {

wire::Prepared Step::PreparedFrame() const {
  return {.step = number_,
          .verdict = *agreement_.prepared(),
          .digest = ResultsDigest(),
          .reason = blame_.Sentence(membership_)};
}

MaybeFailure Step::OnReady(int rank, const wire::Ready& ready, Effects& effects) {
  if (ready.step == number_ - 1) return std::nullopt;  // a resume repeats it
  absl::Status status =
      ready.step == number_
          ? agreement_.OnReady(rank, ready)
          : absl::FailedPreconditionError(absl::StrCat("is READY in step ", ready.step,
                                                       "; the session is at step ", number_));
  if (!status.ok()) return ViolationOf(rank, std::move(status));
  // It holds all results: this shard's, too.
  for (auto& [key, bucket] : table_.all()) {
    if (bucket.step() == number_) flow_.AcknowledgeAll(rank, bucket);
  }
  MaybeConclude(effects);
  return std::nullopt;
}

// Each member says it, and the first one counts. One that holds what the lead concluded has no part
// of this step to come. A member that resumes repeats what it said last, which may be of the step
// before the last, if it has not heard from the lead what others have.
MaybeFailure Step::OnConcluded(int rank, const wire::Concluded& concluded, Effects& effects) {
  if (!agreement_.leads() && concluded.step == number_ - 2) return std::nullopt;
  absl::Status status;
  if (concluded.step == number_ - 1) {
    status = agreement_.CheckRepeated(concluded);
  } else if (concluded.step == number_) {
    status = agreement_.OnConcluded(concluded);
  } else {
    status = absl::FailedPreconditionError(absl::StrCat(
        "says that step ", concluded.step, " was concluded; the session is at step ", number_));
  }
  if (!status.ok()) return ViolationOf(rank, std::move(status));
  MaybeConclude(effects);
  return std::nullopt;
}

}  // namespace gradwire::server

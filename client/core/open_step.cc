#include "client/core/open_step.h"

#include "base/mutants.h"
#include "client/core/bucket_run.h"

namespace gradwire::client {

OpenStep::OpenStep(const MemberOptions& options, Hook* hook)
    : options_(options), hook_(hook), parameters_(options.manifest), number_(options.step) {}

OpenStep::~OpenStep() = default;

BucketRun* OpenStep::Find(std::uint32_t id) const {
  const auto found = buckets_.find(id);
  return found == buckets_.end() ? nullptr : found->second.run.get();
}

std::optional<std::uint32_t> OpenStep::BucketId(const GradBucket& bucket) const {
  if (bucket.parameters().empty()) return std::nullopt;
  return parameters_.Find(bucket.parameters().front().name);
}

const BucketRun* OpenStep::FirstUnfinished() const {
  for (const auto& [id, bucket] : buckets_) {
    if (!bucket.run->holds_result()) return bucket.run.get();
  }
  return nullptr;
}

absl::StatusOr<BucketRun*> OpenStep::Start(Ticket ticket, GradBucket& bucket, const Begun& begun,
                                           const RoundContext& context) {
  absl::StatusOr<std::vector<std::uint32_t>> positions = parameters_.Map(bucket, number_);
  if (!positions.ok()) return positions.status();
  absl::StatusOr<std::unique_ptr<BucketRun>> run =
      BucketRun::Start(*hook_, bucket,
                       {.parameters = *positions,
                        .step = number_,
                        .chunk_bytes = options_.chunk_bytes,
                        .measure = begun.measure,
                        .share = begun.share,
                        .slice = options_.SliceOf(positions->front())},
                       context);
  if (!run.ok()) return run.status();
  // From here on nothing can fail: an error above leaves the step as it was.
  parameters_.Use(*positions);
  ++unfinished_;
  Bucket& placed = buckets_[positions->front()];
  placed = {.ticket = ticket, .run = *std::move(run)};
  return placed.run.get();
}

absl::Status OpenStep::Advance(BucketRun& run, const RoundContext& context, Effects& effects) {
  while (!run.holds_result() && run.is_round_complete()) {
    if (absl::Status status = run.NextRound(context); !status.ok()) return status;
  }
  if (!run.holds_result()) return absl::OkStatus();
  --unfinished_;
  effects.push_back(BucketDoneEffect{.ticket = buckets_.at(run.id()).ticket,
                                     .status = absl::OkStatus(),
                                     .bucket = run.id(),
                                     .norms = run.norms()});
  return absl::OkStatus();
}

void OpenStep::Conclude(const wire::StepDone& done, Effects& effects) {
  const Verdict verdict = done.verdict;
  for (auto& [id, bucket] : buckets_) {
    if (verdict == Verdict::kApply || IsActive(Mutant::kSkipCommitted)) {
      bucket.run->Commit();
    } else {
      bucket.run->Abort();
    }
  }
  Clear();
  hook_->EndStep(verdict);
  effects.push_back(StepDoneEffect{.step = number_,
                                   .verdict = verdict,
                                   .dropped = done.dropped,
                                   .change = done.change,
                                   .reason = done.reason,
                                   .drift = done.drift});
  ++number_;
}

void OpenStep::Drop(const wire::StepDone& done, Effects& effects) {
  for (const auto& [id, bucket] : buckets_) {
    if (bucket.run->holds_result()) continue;
    effects.push_back(
        BucketDoneEffect{.ticket = bucket.ticket, .status = absl::OkStatus(), .bucket = id});
  }
  unfinished_ = 0;
  Conclude(done, effects);
}

// Its runs end first: they are of the iteration before.
void OpenStep::MoveTo(std::int64_t number, std::int64_t iteration) {
  for (auto& [id, bucket] : buckets_) bucket.run->Abort();
  BeginAt(number, iteration);
}

void OpenStep::BeginAt(std::int64_t number, std::int64_t iteration) {
  number_ = number;
  hook_->Reset(iteration);
}

void OpenStep::Abort(const absl::Status& status, Effects& effects) {
  for (auto& [id, bucket] : buckets_) {
    bucket.run->Abort();
    // Its BucketDoneEffect was reported when it got its last result.
    if (bucket.run->holds_result()) continue;
    effects.push_back(BucketDoneEffect{.ticket = bucket.ticket, .status = status, .bucket = id});
  }
  Clear();
}

void OpenStep::Clear() {
  buckets_.clear();
  unfinished_ = 0;
  parameters_.Clear();
  ended_ = false;
}

bool OpenStep::ResetState(std::int64_t iteration) {
  const std::pair<std::int64_t, std::int64_t> place(number_, iteration);
  // With buckets open only a repeat can come: of the reset that this step began with.
  if (!buckets_.empty()) return last_reset_ == place;
  last_reset_ = place;
  hook_->Reset(iteration);
  return true;
}

}  // namespace gradwire::client

#include "client/core/open_step.h"

#include <algorithm>
#include <utility>

#include "base/mutants.h"
#include "client/core/bucket_run.h"

namespace gradwire::client {

OpenStep::OpenStep(const MemberOptions& options, Hook* hook)
    : options_(options),
      hook_(hook),
      parameters_(options.manifest),
      number_(options.step),
      kept_(options.device),
      missed_(options.manifest) {}

OpenStep::~OpenStep() = default;

BucketRun* OpenStep::Find(std::uint32_t id) const {
  const auto found = buckets_.find(id);
  return found == buckets_.end() ? nullptr : found->second.run.get();
}

std::optional<std::uint32_t> OpenStep::BucketId(const GradBucket& bucket) const {
  if (bucket.parameters().empty()) return std::nullopt;
  return parameters_.Find(bucket.parameters().front().name);
}

bool OpenStep::AllKept() const {
  return std::ranges::all_of(buckets_, [this](const auto& one) { return IsKept(one.first); });
}

bool OpenStep::has_done() const {
  return std::ranges::any_of(buckets_, [](const auto& one) { return one.second.is_done; });
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
  if (!begun.missed) late_.Enter(*positions, bucket);
  // The hook may write into the bucket as soon as it has it.
  if (begun.keep && kept_.on()) {
    kept_.Keep(positions->front(), bucket, options_.SliceOf(positions->front()));
  }
  absl::StatusOr<std::unique_ptr<BucketRun>> run =
      BucketRun::Start(*hook_, bucket,
                       {.parameters = *positions,
                        .step = number_,
                        .chunk_bytes = options_.chunk_bytes,
                        .measure = begun.measure,
                        .share = begun.share,
                        .slice = options_.SliceOf(positions->front()),
                        .missed = begun.missed},
                       context);
  if (!run.ok()) return run.status();
  // From here on nothing can fail: an error above leaves the step as it was.
  parameters_.Use(*positions);
  ++unfinished_;
  Bucket& placed = buckets_[positions->front()];
  placed = {.ticket = ticket, .run = *std::move(run)};
  return placed.run.get();
}

absl::StatusOr<BucketRun*> OpenStep::StartAgain(std::uint32_t id, const RoundContext& context) {
  Bucket& bucket = buckets_.at(id);
  absl::StatusOr<GradBucket*> kept = kept_.Again(id);
  if (!kept.ok()) return kept.status();
  BucketRun::Options options = bucket.run->options();
  options.again = true;
  if (bucket.run->holds_result()) ++unfinished_;
  bucket.run->Abort();
  absl::StatusOr<std::unique_ptr<BucketRun>> run =
      BucketRun::Start(*hook_, **kept, std::move(options), context);
  if (!run.ok()) return run.status();
  bucket.run = *std::move(run);
  return bucket.run.get();
}

absl::Status OpenStep::Advance(BucketRun& run, const RoundContext& context, Effects& effects) {
  while (!run.holds_result() && run.is_round_complete()) {
    if (absl::Status status = run.NextRound(context); !status.ok()) return status;
  }
  if (!run.holds_result()) return absl::OkStatus();
  --unfinished_;
  Bucket& bucket = buckets_.at(run.id());
  if (run.options().again && !bucket.is_done) kept_.GiveBack(run.id());
  if (MissedBuckets::Bucket* const missed = missed_.Find(run.id());
      missed != nullptr && missed->is_taken) {
    missed->CopyTo(*missed->taken);
  }
  Finish(run.id(), bucket, absl::OkStatus(), effects);
  return absl::OkStatus();
}

// Once: one that is reduced again may have been done before.
void OpenStep::Finish(std::uint32_t id, Bucket& bucket, const absl::Status& status,
                      Effects& effects) {
  if (std::exchange(bucket.is_done, true)) return;
  const bool reduced = bucket.run->holds_result();
  effects.push_back(BucketDoneEffect{.ticket = bucket.ticket,
                                     .status = status,
                                     .bucket = id,
                                     .norms = reduced ? bucket.run->norms() : std::nullopt});
}

void OpenStep::Conclude(const wire::StepDone& done, Effects& effects) {
  const Verdict verdict = done.verdict;
  for (auto& [id, bucket] : buckets_) {
    if (verdict == Verdict::kApply || IsActive(Mutant::kSkipCommitted)) {
      bucket.run->Commit();
      // Its residual was added to the gradients of this step.
      if (IsActive(Mutant::kResidualCountedTwice)) bucket.run->Commit();
    } else {
      bucket.run->Abort();
    }
  }
  if (missed_.any() && !done.dropped) ++missed_steps_;
  late_.Conclude(verdict, done.dropped);
  missed_.Conclude(
      {.step = number_, .verdict = verdict, .dropped = done.dropped, .has_begun = has_begun()});
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
  for (auto& [id, bucket] : buckets_) Finish(id, bucket, absl::OkStatus(), effects);
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
    Finish(id, bucket, status, effects);
  }
  Clear();
}

void OpenStep::Clear() {
  buckets_.clear();
  kept_.Clear();
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

// What the open step does where this member is late, and others go on without its gradients.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/core/bucket_run.h"
#include "client/core/open_step.h"

namespace gradwire::client {

std::vector<std::uint32_t> OpenStep::Positions(const GradBucket& bucket) const {
  std::vector<std::uint32_t> positions;
  for (const ParameterSpec& parameter : bucket.parameters()) {
    const std::optional<std::uint32_t> at = parameters_.Find(parameter.name);
    if (!at || parameter != options_.manifest[*at]) return {};
    positions.push_back(*at);
  }
  return positions;
}

bool OpenStep::has_begun() const {
  return std::ranges::any_of(buckets_, [this](const auto& one) {
    const MissedBuckets::Bucket* const missed = missed_.Find(one.first);
    return missed == nullptr || missed->is_taken;
  });
}

// To the hook it is a bucket like others. Its residual enters it, and what the mean leaves of that
// is the next one: the sum of all members' gradients and residuals is what was applied and what is
// left, with or without this member's part in the mean.
absl::StatusOr<BucketRun*> OpenStep::Miss(const std::vector<std::uint32_t>& parameters,
                                          const RoundContext& context) {
  for (const std::uint32_t position : parameters) {
    if (position < options_.manifest.size()) continue;
    return absl::InternalError(absl::StrCat("the coordinator reduces parameter ", position, " of ",
                                            options_.manifest.size()));
  }
  const absl::StatusOr<MissedBuckets::Bucket*> bucket = missed_.Add(parameters);
  if (!bucket.ok()) return bucket.status();
  const absl::StatusOr<BucketRun*> run =
      Start(/*ticket=*/0, *(*bucket)->scratch, {.missed = true}, context);
  if (!run.ok()) return run.status();
  // Nobody waits for it yet.
  buckets_.at(parameters.front()).is_done = true;
  return run;
}

absl::StatusOr<bool> OpenStep::TakeMissed(Ticket ticket, GradBucket& bucket, Effects& effects) {
  if (!missed_.any()) return false;
  const std::vector<std::uint32_t> positions = Positions(bucket);
  if (positions.empty()) return false;
  const absl::StatusOr<MissedBuckets::Bucket*> missed = missed_.Match(positions);
  if (!missed.ok()) return missed.status();
  // A second time in the step, it is refused like any other bucket.
  if (*missed == nullptr || (*missed)->is_taken) return false;
  (*missed)->is_taken = true;
  (*missed)->taken = &bucket;
  late_.Miss(positions, bucket);
  Bucket& placed = buckets_.at(positions.front());
  placed.ticket = ticket;
  placed.is_done = false;
  if (!placed.run->holds_result()) return true;
  (*missed)->CopyTo(bucket);
  Finish(positions.front(), placed, absl::OkStatus(), effects);
  return true;
}

absl::StatusOr<bool> OpenStep::TakePast(std::int64_t step, const GradBucket& bucket) {
  const std::vector<std::uint32_t> positions = Positions(bucket);
  if (positions.empty()) return false;
  const absl::StatusOr<MissedBuckets::OfPast> past = missed_.Match(step, positions);
  if (!past.ok()) return past.status();
  if (past->bucket == nullptr || past->bucket->is_taken) return false;
  past->bucket->is_taken = true;
  if (past->verdict == Verdict::kApply) late_.Keep(positions, bucket);
  past->bucket->CopyTo(bucket);
  return true;
}

void OpenStep::KeepAnnounced(std::uint32_t id) {
  if (!kept_.Has(id)) return;
  const absl::StatusOr<GradBucket*> kept = kept_.Again(id);
  if (kept.ok()) late_.Miss(Find(id)->parameters(), **kept);
}

}  // namespace gradwire::client

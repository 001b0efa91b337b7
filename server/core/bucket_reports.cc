#include "server/core/bucket_reports.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/core/bucket_table.h"

namespace gradwire::server {

absl::Status BucketReports::Take(int rank, const wire::BucketReport& report) {
  if (report.bucket >= manifest_.size() || report.parameters > manifest_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("reported on bucket ", report.bucket, " of ", report.parameters,
                     " parameters; the manifest has ", manifest_.size()));
  }
  if (rank == 0) reports_[report.bucket] = report;
  return absl::OkStatus();
}

void BucketReports::EndStep(const BucketTable& table, std::int64_t step) {
  std::erase_if(reports_, [&](const auto& entry) {
    return !table.all().contains({step, entry.first});
  });
}

void BucketReports::Log(const CoordinatorHook* hook, const BucketTable& table, std::int64_t step,
                        Effects& effects) const {
  const std::int64_t interval = hook == nullptr ? 0 : hook->log_interval();
  if (interval == 0 || hook->iteration() % interval != 0) return;
  std::size_t before = 0;
  std::size_t after = 0;
  for (const auto& [key, bucket] : table.all()) {
    if (bucket.step() != step) continue;
    before += manifest_.GradientBytes(bucket.parameters());
    for (const RoundPlan& plan : bucket.plans()) after += plan.bytes();
  }
  std::string text = absl::StrFormat(
      "after %d applied steps: %d bytes of gradients went as %d bytes, 1/%.1f", hook->iteration(),
      before, after,
      static_cast<double>(before) / static_cast<double>(std::max<std::size_t>(after, 1)));
  double gradient = 0;
  double residual = 0;
  // Buckets are disjoint parts of one vector, so the squares of their norms add up.
  for (const auto& [id, report] : reports_) {
    gradient += report.gradient_norm * report.gradient_norm;
    residual += report.residual_norm * report.residual_norm;
  }
  if (gradient > 0) {
    absl::StrAppendFormat(&text, "; rank 0's residual has %.3f of its gradient's norm",
                          std::sqrt(residual / gradient));
  }
  effects.push_back(LogEffect{.message = text});
}

}  // namespace gradwire::server

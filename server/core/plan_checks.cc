#include "server/core/plan_checks.h"

#include "absl/strings/str_cat.h"

namespace gradwire::server {
namespace {

absl::Status CheckMatrices(const Segment& segment, const std::string& bucket,
                           std::size_t chunk_bytes) {
  for (const MatrixShape& matrix : segment.matrices) {
    const std::size_t bytes = matrix.numel() * ByteSize(segment.dtype);
    if (bytes <= chunk_bytes) continue;
    return absl::ResourceExhaustedError(absl::StrCat("announced a matrix of ", bytes,
                                                     " bytes for bucket ", bucket, "; at most ",
                                                     chunk_bytes, " are allowed"));
  }
  return absl::OkStatus();
}

// The daemon cannot derive the plan of a user's hook. Limits relative to the gradients keep it
// within what SessionOptions::StepBytes reserves.
absl::Status CheckUsersRound(const RoundPlan& plan, const wire::Announce& announce,
                             const SessionOptions& options) {
  const std::string bucket = options.manifest.BucketName(announce.parameters);
  const std::size_t gradient_bytes = options.manifest.GradientBytes(announce.parameters);
  const std::size_t limit = kMaxBytesPerGradientByte * gradient_bytes + kExtraRoundBytes;
  const std::size_t most_segments =
      kMaxSegmentsPerParameter * announce.parameters.size() + kExtraSegments;
  if (plan.segments.size() > most_segments) {
    return absl::InvalidArgumentError(absl::StrCat("announced a round of ", plan.segments.size(),
                                                   " segments for bucket ", bucket, "; at most ",
                                                   most_segments, " are allowed"));
  }
  std::size_t bytes = 0;
  for (const Segment& segment : plan.segments) {
    // Before it is multiplied: its product may not fit.
    bytes = segment.numel > limit ? limit + 1 : bytes + segment.bytes();
    if (bytes > limit) {
      return absl::ResourceExhaustedError(absl::StrCat("announced a round of more than ", limit,
                                                       " bytes for bucket ", bucket,
                                                       ", whose gradients have ", gradient_bytes));
    }
    // A matrix is gathered whole from every member, whatever the window.
    if (absl::Status status = CheckMatrices(segment, bucket, options.chunk_bytes); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlan(const wire::Announce& announce, CoordinatorHook* hook,
                       const SessionOptions& options) {
  if (hook != nullptr) {
    const auto plan = hook->Plan(announce.parameters);
    if (!plan.ok() || *plan == announce.rounds) return plan.status();
    return absl::InvalidArgumentError(
        absl::StrCat("announced rounds ", PlanText(announce.rounds), " for bucket ",
                     options.manifest.BucketName(announce.parameters), "; hook ",
                     options.spec.ToString(), " has ", PlanText(*plan)));
  }
  if (announce.rounds.size() > kMaxRounds) {
    return absl::InvalidArgumentError(absl::StrCat(
        "announced ", announce.rounds.size(), " rounds; at most ", kMaxRounds, " are allowed"));
  }
  for (const RoundPlan& plan : announce.rounds) {
    if (absl::Status status = CheckUsersRound(plan, announce, options); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string PlanText(std::span<const RoundPlan> plans) {
  std::string text;
  for (const RoundPlan& plan : plans) {
    absl::StrAppend(&text, "{");
    for (const Segment& segment : plan.segments) {
      absl::StrAppend(&text, segment.numel, " ", Name(segment.dtype),
                      segment.op == ReduceOp::kMean ? " mean" : " sum", ";");
    }
    absl::StrAppend(&text, "}");
  }
  return text.empty() ? "none" : text;
}

}  // namespace gradwire::server

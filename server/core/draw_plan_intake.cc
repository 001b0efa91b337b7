#include "server/core/draw_plan_intake.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::server {

MaybeFailure DrawPlanIntake::On(int rank, const wire::DrawPlan& piece, Effects& effects) {
  if (rank != 0) {
    return ViolationOf(rank, absl::PermissionDeniedError(absl::StrCat("sent a draw plan as rank ",
                                                                      rank, "; allowed: rank 0")));
  }
  absl::Status status = Add(piece);
  if (status.ok() && piece.last) status = HandOver(effects);
  if (status.ok()) return std::nullopt;
  return ViolationOf(rank, std::move(status));
}

// No plan has more parameters than the manifest, so that pieces cannot add up to more memory.
absl::Status DrawPlanIntake::Add(const wire::DrawPlan& piece) {
  // Piece 0 also drops a plan that a broken stream left incomplete: the resume sends it whole.
  if (piece.piece == 0) {
    buckets_.clear();
    held_ = next_ = 0;
  }
  if (piece.piece != next_) {
    return absl::FailedPreconditionError(
        absl::StrCat("sent piece ", piece.piece, " of a draw plan; allowed: 0 or ", next_));
  }
  if (piece.continued && buckets_.empty()) {
    return absl::InvalidArgumentError(
        "sent a draw plan whose first bucket is continued; allowed: from the second piece on");
  }
  for (const auto& bucket : piece.buckets) held_ += bucket.size();
  if (held_ > parameters_) {
    return absl::InvalidArgumentError(
        absl::StrCat("sent a draw plan of ", held_, " parameters; allowed: 1 to ", parameters_));
  }
  auto from = piece.buckets.begin();
  if (piece.continued && from != piece.buckets.end()) {
    buckets_.back().insert(buckets_.back().end(), from->begin(), from->end());
    ++from;
  }
  buckets_.insert(buckets_.end(), from, piece.buckets.end());
  next_ = piece.last ? 0 : next_ + 1;
  return absl::OkStatus();
}

absl::Status DrawPlanIntake::HandOver(Effects& effects) {
  held_ = 0;
  const DrawBuckets buckets = std::exchange(buckets_, {});
  if (hook_ == nullptr) return absl::OkStatus();
  absl::Status status = hook_->SetDrawPlan(buckets);
  // A plan that comes too late is no violation: rank 0 cannot know that when it resumes.
  if (!absl::IsFailedPrecondition(status)) return status;
  effects.push_back(LogEffect{
      .message = absl::StrCat("rank 0's plan has no effect: ", status.message()), .rank = 0});
  return absl::OkStatus();
}

}  // namespace gradwire::server

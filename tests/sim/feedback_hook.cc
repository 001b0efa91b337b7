#include "tests/sim/feedback_hook.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/bytes.h"

namespace gradwire::sim {

absl::StatusOr<std::vector<RoundPlan>> FeedbackHook::Plan(std::span<const ParameterSpec> parameters,
                                                          std::int64_t) const {
  std::size_t numel = 0;
  for (const ParameterSpec& parameter : parameters) numel += parameter.numel();
  std::vector<RoundPlan> plans;
  if (options_.empty_round)
    plans.push_back(RoundPlan{{Segment{options_.wire, 0, ReduceOp::kMean}}});
  for (int r = 0; r < options_.rounds; ++r) {
    RoundPlan plan{{Segment{options_.wire, numel, ReduceOp::kMean}}};
    if (r == 0 && options_.side_numel > 0) {
      plan.segments.push_back(Segment{DType::kFloat64, options_.side_numel, ReduceOp::kSum});
    }
    plans.push_back(plan);
  }
  return plans;
}

class FeedbackRun final : public HookRunBase {
 public:
  FeedbackRun(FeedbackHook& hook, GradBucket& bucket, std::vector<RoundPlan> plans)
      : hook_(hook),
        plans_(std::move(plans)),
        parameters_(bucket.parameters()),
        buffer_(bucket.buffer()),
        target_(buffer_.numel),
        total_(buffer_.numel),
        round_result_(buffer_.numel) {
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(buffer_.data),
                                           buffer_.bytes());
    std::size_t at = 0;
    for (const ParameterSpec& parameter : parameters_) {
      const auto residual = hook_.residuals_.find(parameter.name);
      for (std::size_t i = 0; i < parameter.numel(); ++i, ++at) {
        target_[at] = GetElement(buffer_.dtype, bytes, at);
        if (residual != hook_.residuals_.end()) target_[at] += residual->second[i];
      }
    }
  }

  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& context) override {
    if (ended_) hook_.report_("Next after the end of the run");
    if (round_ >= 0) {
      if (decoded_ != CurrentPlan().bytes()) hook_.report_("Next before the round was decoded");
      for (std::size_t i = 0; i < total_.size(); ++i) total_[i] += round_result_[i];
    }
    rank_ = context.rank;
    ++round_;
    if (round_ == static_cast<int>(plans_.size())) {
      const std::span<std::byte> out(static_cast<std::byte*>(buffer_.data), buffer_.bytes());
      for (std::size_t i = 0; i < total_.size(); ++i) PutElement(buffer_.dtype, out, i, total_[i]);
      return std::optional<RoundPlan>();
    }
    decoded_ = 0;
    frozen_.assign(CurrentPlan().segments.size(), {});
    for (std::size_t s = 0; s < frozen_.size(); ++s) {
      frozen_[s].resize(CurrentPlan().segments[s].numel);
    }
    std::fill(round_result_.begin(), round_result_.end(), 0.0);
    return std::optional<RoundPlan>(CurrentPlan());
  }

  absl::Status Encode(ElementRange range, std::span<std::byte> out) override {
    const Segment& segment = CurrentPlan().segments[range.segment];
    for (std::size_t i = range.begin; i < range.end; ++i) {
      if (frozen_[range.segment][i]) hook_.report_("Encode of a range that was decoded");
      const double value =
          range.segment == 0 ? target_[i] - total_[i] : static_cast<double>(rank_ + 1) * 1.5;
      PutElement(segment.dtype, out, i - range.begin, value);
    }
    return absl::OkStatus();
  }

  absl::Status Decode(ElementRange range, std::span<const std::byte> in) override {
    const Segment& segment = CurrentPlan().segments[range.segment];
    if (in.size() != range.numel() * ByteSize(segment.dtype))
      hook_.report_("Decode of other bytes");
    for (std::size_t i = range.begin; i < range.end; ++i) {
      if (frozen_[range.segment][i]) hook_.report_("Decode of a range twice");
      frozen_[range.segment][i] = true;
      if (range.segment == 0) round_result_[i] = GetElement(segment.dtype, in, i - range.begin);
    }
    decoded_ += in.size();
    return absl::OkStatus();
  }

  void Commit() override {
    if (!hook_.commit_allowed_) hook_.report_("state touched before the step's commit");
    if (ended_) hook_.report_("Commit twice, or after Abort");
    ended_ = true;
    std::size_t at = 0;
    for (const ParameterSpec& parameter : parameters_) {
      std::vector<double>& residual = hook_.residuals_[parameter.name];
      residual.resize(parameter.numel());
      for (double& value : residual) {
        value = target_[at] - total_[at];
        ++at;
      }
    }
  }

  void Abort() override { ended_ = true; }

 private:
  const RoundPlan& CurrentPlan() const { return plans_[static_cast<std::size_t>(round_)]; }

  FeedbackHook& hook_;
  const std::vector<RoundPlan> plans_;
  const std::vector<ParameterSpec> parameters_;
  const TensorView buffer_;
  std::vector<double> target_;  // gradient and residual
  std::vector<double> total_;   // of the rounds that are over
  std::vector<double> round_result_;
  std::vector<std::vector<bool>> frozen_;
  std::size_t decoded_ = 0;
  int round_ = -1;
  int rank_ = 0;
  bool ended_ = false;
};

absl::StatusOr<std::unique_ptr<HookRun>> FeedbackHook::Start(GradBucket& bucket,
                                                             std::int64_t step) {
  absl::StatusOr<std::vector<RoundPlan>> plans = Plan(bucket.parameters(), step);
  return std::make_unique<FeedbackRun>(*this, bucket, *std::move(plans));
}

class WatchedRun final : public HookRun {
 public:
  WatchedRun(WatchedHook& hook, std::unique_ptr<HookRun> inner)
      : hook_(hook), inner_(std::move(inner)) {}

  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& context) override {
    return inner_->Next(context);
  }
  absl::Status Encode(ElementRange range, std::span<std::byte> out) override {
    return inner_->Encode(range, out);
  }
  std::span<const std::byte> Raw(ElementRange range) const override { return inner_->Raw(range); }
  absl::Status Decode(ElementRange range, std::span<const std::byte> in) override {
    return inner_->Decode(range, in);
  }
  absl::Status DecodeInPlace(ElementRange range) override { return inner_->DecodeInPlace(range); }
  std::size_t shared_bytes() const override { return inner_->shared_bytes(); }
  absl::Status Import(std::span<const std::byte> shared) override { return inner_->Import(shared); }
  void Measure() override { inner_->Measure(); }
  std::optional<BucketNorms> norms() const override { return inner_->norms(); }
  std::vector<TensorView> residuals() const override { return inner_->residuals(); }
  void Commit() override {
    if (!hook_.commit_allowed_) hook_.report_("state touched before the step's commit");
    inner_->Commit();
  }
  void Abort() override { inner_->Abort(); }

 private:
  WatchedHook& hook_;
  std::unique_ptr<HookRun> inner_;
};

absl::StatusOr<std::unique_ptr<HookRun>> WatchedHook::Start(GradBucket& bucket, std::int64_t step) {
  absl::StatusOr<std::unique_ptr<HookRun>> run = inner_->Start(bucket, step);
  if (!run.ok()) return run.status();
  return std::make_unique<WatchedRun>(*this, *std::move(run));
}

}  // namespace gradwire::sim

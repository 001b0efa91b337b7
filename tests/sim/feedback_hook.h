// A user's hook with error feedback: what rounding to the wire's dtype loses is added to the next
// step's gradient. State changes only with Commit; every call is checked against hook.h's contract.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/hooks/hook.h"

namespace gradwire::sim {

struct FeedbackOptions {
  DType wire = DType::kBFloat16;
  int rounds = 1;              // 1 or 2 with elements; the second sends what the first one missed
  bool empty_round = false;    // a round without elements goes first
  std::size_t side_numel = 0;  // fp64 sums that ride along in the first round
};

// What a member told its hook in breach of the contract, or a Commit where none may be.
using ReportBreach = std::function<void(const std::string&)>;

class FeedbackHook final : public HookBase {
 public:
  FeedbackHook(FeedbackOptions options, ReportBreach report)
      : options_(options), report_(std::move(report)) {}

  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t step) const override;
  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) override;

  // By parameter. A parameter that took part in no applied step has none.
  const std::map<std::string, std::vector<double>>& residuals() const { return residuals_; }

  // True only while a member handles a StepDone with verdict apply.
  void AllowCommit(bool allowed) { commit_allowed_ = allowed; }

 private:
  friend class FeedbackRun;

  FeedbackOptions options_;
  ReportBreach report_;
  bool commit_allowed_ = false;
  std::map<std::string, std::vector<double>> residuals_;
};

// Wraps a built-in hook to check that it is committed at the right time only.
class WatchedHook final : public Hook {
 public:
  WatchedHook(std::unique_ptr<Hook> inner, ReportBreach report)
      : inner_(std::move(inner)), report_(std::move(report)) {}

  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t step) const override {
    return inner_->Plan(parameters, step);
  }
  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) override;
  void EndStep(Verdict verdict) override { inner_->EndStep(verdict); }
  HookState State() const override { return inner_->State(); }
  absl::Status LoadState(const HookState& state, std::span<const ParameterSpec> manifest) override {
    return inner_->LoadState(state, manifest);
  }
  HookState Copy() const override { return inner_->Copy(); }
  void SetLossScale(double scale) override { inner_->SetLossScale(scale); }
  void Reset(std::int64_t iteration) override {
    ++resets_;
    inner_->Reset(iteration);
  }
  void Forget(std::span<const std::string> parameters) override { inner_->Forget(parameters); }
  int resets() const { return resets_; }
  void AllowCommit(bool allowed) { commit_allowed_ = allowed; }

 private:
  friend class WatchedRun;

  std::unique_ptr<Hook> inner_;
  ReportBreach report_;
  bool commit_allowed_ = false;
  int resets_ = 0;
};

}  // namespace gradwire::sim

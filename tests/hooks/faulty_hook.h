// A hook that does what the one inside does, and a fault on request: it changes what another hook
// around it has seen already.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "gradwire/hooks/hook.h"
#include "tests/hooks/reference.h"

namespace gradwire::testing {

enum class Fault : std::uint8_t {
  kNone,
  kGradientLost,        // the hook inside is given zeros
  kGradientTwice,       // or twice the gradient
  kMeanTwice,           // the bucket holds twice the result
  kResidualsForgotten,  // residuals() has none of any parameter
};

class FaultyRun final : public HookRun {
 public:
  FaultyRun(GradBucket& bucket, Fault fault, std::unique_ptr<HookRun> inner)
      : bucket_(bucket), fault_(fault), inner_(std::move(inner)) {}

  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& context) override {
    if (!std::exchange(begun_, true)) {
      if (fault_ == Fault::kGradientLost) Multiply(0);
      if (fault_ == Fault::kGradientTwice) Multiply(2);
    }
    auto plan = inner_->Next(context);
    if (plan.ok() && !plan->has_value() && fault_ == Fault::kMeanTwice) Multiply(2);
    return plan;
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
  std::vector<TensorView> residuals() const override {
    if (fault_ != Fault::kResidualsForgotten) return inner_->residuals();
    return std::vector<TensorView>(bucket_.parameters().size());
  }
  void Commit() override { inner_->Commit(); }
  void Abort() override { inner_->Abort(); }

 private:
  void Multiply(long double factor) {
    for (const TensorView& view : bucket_.gradients()) {
      auto* const bytes = static_cast<std::byte*>(view.data);
      std::vector<long double> values;
      for (const std::uint64_t bits : reference::Unpack(view.dtype, bytes, view.numel)) {
        values.push_back(reference::Decode(view.dtype, bits) * factor);
      }
      std::ranges::copy(reference::PackValues(view.dtype, values), bytes);
    }
  }

  GradBucket& bucket_;
  const Fault fault_;
  const std::unique_ptr<HookRun> inner_;
  bool begun_ = false;
};

class FaultyHook final : public Hook {
 public:
  // Runs have the fault that is set when they start.
  FaultyHook(std::unique_ptr<Hook> inner, const Fault& fault)
      : inner_(std::move(inner)), fault_(fault) {}

  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t step) const override {
    return inner_->Plan(parameters, step);
  }
  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) override {
    auto run = inner_->Start(bucket, step);
    if (!run.ok()) return run.status();
    return std::make_unique<FaultyRun>(bucket, fault_, *std::move(run));
  }
  void EndStep(Verdict verdict) override { inner_->EndStep(verdict); }
  HookState State() const override { return inner_->State(); }
  absl::Status LoadState(const HookState& state, std::span<const ParameterSpec> manifest) override {
    return inner_->LoadState(state, manifest);
  }
  HookState Copy() const override { return inner_->Copy(); }
  void Reset(std::int64_t iteration) override { inner_->Reset(iteration); }
  void Forget(std::span<const std::string> parameters) override { inner_->Forget(parameters); }
  void SetLossScale(double scale) override { inner_->SetLossScale(scale); }

 private:
  const std::unique_ptr<Hook> inner_;
  const Fault& fault_;
};

}  // namespace gradwire::testing

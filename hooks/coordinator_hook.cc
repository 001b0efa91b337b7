#include "hooks/coordinator_hook.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "base/error_code.h"
#include "gradwire/hooks/registry.h"
#include "hooks/power_sgd/coordinator.h"
#include "hooks/simple_hooks.h"

namespace gradwire {
namespace {

absl::Status NoStateError() {
  return Coded(ErrorCode::kNoState, absl::FailedPreconditionError(
                                        "the session's hook keeps no state on the coordinator"));
}

class NoSnapshot final : public HookSnapshot {
 public:
  absl::StatusOr<HookState> State(const OwnsParameter& /*owns*/) const override {
    return NoStateError();
  }
  std::vector<ParameterReport> Report() const override { return {}; }
};

// A hook that shares nothing: `no`, `fp16`, `bf16`, `noop`, and wrappers around them.
class PlanningHook final : public CoordinatorHook {
 public:
  // `wire`: as PlanCast has it.
  PlanningHook(SharedManifest manifest, bool has_rounds, std::optional<DType> wire)
      : manifest_(std::move(manifest)), has_rounds_(has_rounds), wire_(wire) {}

  absl::StatusOr<std::vector<RoundPlan>> Plan(BucketPositions bucket) override {
    if (!has_rounds_) return std::vector<RoundPlan>();
    return PlanCast(wire_, BucketParameters(*manifest_, bucket));
  }
  void EndStep(Verdict verdict) override {
    if (verdict == Verdict::kApply) ++iteration_;
  }
  std::int64_t iteration() const override { return iteration_; }

 private:
  const SharedManifest manifest_;
  const bool has_rounds_;
  const std::optional<DType> wire_;
  std::int64_t iteration_ = 0;
};

std::optional<DType> HalfNamed(const std::string& name) {
  if (name == "fp16") return DType::kFloat16;
  if (name == "bf16") return DType::kBFloat16;
  return std::nullopt;
}

}  // namespace

std::shared_ptr<const HookSnapshot> CoordinatorHook::Snapshot() const {
  return std::make_shared<NoSnapshot>();
}

absl::StatusOr<std::shared_ptr<HookImport>> CoordinatorHook::ReadState(
    const HookState& /*state*/) const {
  return NoStateError();
}

absl::StatusOr<std::shared_ptr<HookImport>> CoordinatorHook::ReadCopy(
    HookState /*copy*/, const OwnsParameter& /*owns*/) const {
  return NoStateError();
}

absl::StatusOr<std::unique_ptr<CoordinatorHook>> MakeCoordinatorHook(const HookSpec& spec,
                                                                     SharedManifest manifest) {
  // A registered hook exists only in the members, so the coordinator has nothing to check its plans
  // with.
  if (!HookRegistry::IsBuiltIn(spec.comm_hook)) return std::unique_ptr<CoordinatorHook>();
  if (absl::Status status = spec.Validate(); !status.ok()) return status;
  if (spec.comm_hook == "power_sgd" || spec.comm_hook == "batched_power_sgd") {
    absl::StatusOr<PowerSgdOptions> options = PowerSgdOptions::FromSpec(spec);
    if (!options.ok()) return options.status();
    return std::make_unique<PowerSgdCoordinator>(*options, std::move(manifest));
  }
  // Around `no` a wrapper is the casting hook. Around `fp16` or `bf16` the inner hook's dtype
  // travels.
  const auto wire = HalfNamed(spec.comm_hook == "no" ? spec.comm_wrapper : spec.comm_hook);
  return std::make_unique<PlanningHook>(std::move(manifest), spec.comm_hook != "noop", wire);
}

absl::StatusOr<std::unique_ptr<CoordinatorHook>> MakeCoordinatorHook(
    const HookSpec& spec, std::span<const ParameterSpec> manifest) {
  return MakeCoordinatorHook(
      spec, std::make_shared<const std::vector<ParameterSpec>>(manifest.begin(), manifest.end()));
}

}  // namespace gradwire

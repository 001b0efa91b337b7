#include "hooks/coordinator_hook.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/hooks/registry.h"
#include "hooks/power_sgd/coordinator.h"

namespace gradwire {
namespace {

// A hook that shares nothing: the member's own object plans for the coordinator too.
class PlanningHook : public CoordinatorHook {
 public:
  explicit PlanningHook(std::unique_ptr<Hook> hook) : hook_(std::move(hook)) {}

  absl::StatusOr<std::vector<RoundPlan>> Plan(
      std::span<const ParameterSpec> bucket) const override {
    return hook_->Plan(bucket, 0);
  }
  void EndStep(Verdict verdict) override {
    if (verdict == Verdict::kApply) ++iteration_;
  }
  std::int64_t iteration() const override { return iteration_; }

 private:
  const std::unique_ptr<Hook> hook_;
  std::int64_t iteration_ = 0;
};

}  // namespace

absl::StatusOr<HookState> CoordinatorHook::Export() const {
  return absl::FailedPreconditionError("the session's hook keeps no state on the coordinator");
}

absl::Status CoordinatorHook::Import(const HookState& /*state*/) {
  return absl::FailedPreconditionError("the session's hook keeps no state on the coordinator");
}

absl::StatusOr<std::unique_ptr<CoordinatorHook>> MakeCoordinatorHook(
    const HookSpec& spec, std::span<const ParameterSpec> manifest) {
  if (!HookRegistry::IsBuiltIn(spec.comm_hook)) return std::unique_ptr<CoordinatorHook>();
  if (spec.comm_hook == "power_sgd" || spec.comm_hook == "batched_power_sgd") {
    absl::StatusOr<PowerSgdOptions> options = PowerSgdOptions::FromSpec(spec);
    if (!options.ok()) return options.status();
    return std::make_unique<PowerSgdCoordinator>(*options, manifest);
  }
  absl::StatusOr<std::unique_ptr<Hook>> hook = HookRegistry::Global().Make(spec);
  if (!hook.ok()) return hook.status();
  return MakePlanningHook(*std::move(hook));
}

std::unique_ptr<CoordinatorHook> MakePlanningHook(std::unique_ptr<Hook> hook) {
  return std::make_unique<PlanningHook>(std::move(hook));
}

}  // namespace gradwire

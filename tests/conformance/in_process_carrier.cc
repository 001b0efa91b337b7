#include <memory>
#include <utility>

#include "tests/conformance/hook_conformance.h"
#include "tests/testing/hook_world.h"

namespace gradwire::conformance {
namespace {

class InProcessCarrier : public Carrier {
 public:
  explicit InProcessCarrier(std::unique_ptr<testing::HookWorld> world) : world_(std::move(world)) {}

  absl::StatusOr<StepResult> RunStep(
      const std::vector<MemberGradients>& gradients,
      const std::vector<std::vector<std::size_t>>& buckets) override {
    StepResult result{.gradients = gradients, .verdicts = {}};
    const auto verdict = world_->RunStep(result.gradients, buckets);
    if (!verdict.ok()) return verdict.status();
    result.verdicts.assign(gradients.size(), *verdict);
    return result;
  }

 private:
  const std::unique_ptr<testing::HookWorld> world_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Carrier>> MakeInProcessCarrier(
    int world_size, const HookSpec& spec, const std::vector<ParameterSpec>& parameters) {
  return MakeDeviceCarrier(world_size, spec, parameters, MakeHostDevice);
}

absl::StatusOr<std::unique_ptr<Carrier>> MakeDeviceCarrier(
    int world_size, const HookSpec& spec, const std::vector<ParameterSpec>& parameters,
    const std::function<std::shared_ptr<Device>()>& make_device) {
  auto world = testing::HookWorld::Make(world_size, spec, parameters, make_device);
  if (!world.ok()) return world.status();
  return std::unique_ptr<Carrier>(std::make_unique<InProcessCarrier>(*std::move(world)));
}

}  // namespace gradwire::conformance

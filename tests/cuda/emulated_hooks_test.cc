// Every hook with gradients on the emulated GPU: what it promises, and that all members' results
// are those of members whose gradients lie on the host.
#include <cmath>
#include <cstring>
#include <string>

#include "gradwire/hooks/registry.h"
#include "hooks/device_hooks.h"
#include "tests/conformance/hook_conformance.h"
#include "tests/cuda/emulated_device.h"
#include "tests/cuda/emulation/emulation.h"
#include "tests/hooks/power_sgd_world.h"

namespace gradwire::conformance {
namespace {

absl::StatusOr<std::unique_ptr<Carrier>> MakeEmulatedCarrier(
    int world_size, const HookSpec& spec, const std::vector<ParameterSpec>& parameters) {
  emulation::Reset();
  return MakeDeviceCarrier(world_size, spec, parameters,
                           [] { return testing::MakeEmulatedDevice(); });
}

INSTANTIATE_TEST_SUITE_P(EmulatedGpu, HookConformance,
                         ::testing::ValuesIn(AllCases("EmulatedGpu", MakeEmulatedCarrier)),
                         CaseName);

}  // namespace
}  // namespace gradwire::conformance

namespace gradwire {
namespace {

using testing::HookWorld;
using testing::MakeEmulatedDevice;

// PowerSGD's products may differ in their last bits, and so may what follows from them: rounding to
// the wire's dtype makes a whole unit of a last bit.
double Tolerance(const HookSpec& spec) { return spec.comm_wrapper == "fp16" ? 2e-3 : 1e-5; }

class PowerSgdOnGpu : public ::testing::TestWithParam<const char*> {};

double Difference(const testing::MemberGradients& a, const testing::MemberGradients& b) {
  double error = 0;
  double norm = 0;
  for (std::size_t p = 0; p < a.size(); ++p) {
    for (std::size_t i = 0; i < a[p].size() / sizeof(float); ++i) {
      const double x = testing::At<float>(a[p], i);
      const double y = testing::At<float>(b[p], i);
      error += (x - y) * (x - y);
      norm += x * x;
    }
  }
  return std::sqrt(error / norm);
}

TEST_P(PowerSgdOnGpu, IsThatOnTheHost) {
  emulation::Reset();
  const HookSpec spec = *HookSpec::Parse(testing::Form(GetParam()));
  const auto model = testing::Model(DType::kFloat32);
  const auto host = *HookWorld::Make(3, spec, model);
  const auto gpu = *HookWorld::Make(3, spec, model, [] { return MakeEmulatedDevice(); });
  for (std::uint32_t step = 0; step < 8; ++step) {
    auto expected = testing::Pack<float>(testing::RandomGradients(model, 3, step));
    auto actual = expected;
    const auto& buckets = step % 2 == 0 ? testing::kOne : testing::kTwo;
    ASSERT_TRUE(host->RunStep(expected, buckets).ok());
    const auto verdict = gpu->RunStep(actual, buckets);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    for (std::size_t rank = 0; rank < 3; ++rank) {
      EXPECT_LT(Difference(expected[rank], actual[rank]), Tolerance(spec)) << "step " << step;
      EXPECT_EQ(actual[rank], actual[0]) << "members differ";
    }
    ASSERT_EQ(host->norms().size(), gpu->norms().size());
    for (std::size_t b = 0; b < gpu->norms().size(); ++b) {
      ASSERT_EQ(host->norms()[b].has_value(), gpu->norms()[b].has_value());
      if (!host->norms()[b].has_value()) continue;
      EXPECT_NEAR(host->norms()[b]->gradient, gpu->norms()[b]->gradient,
                  1e-6 * host->norms()[b]->gradient);
      EXPECT_NEAR(host->norms()[b]->residual, gpu->norms()[b]->residual,
                  1e-4 * host->norms()[b]->residual);
    }
  }
  EXPECT_TRUE(emulation::violations().empty());
}

// A state that comes from a GPU is one that the host loads, and the other way round.
TEST_P(PowerSgdOnGpu, MovesItsStateBetweenGpuAndHost) {
  emulation::Reset();
  const HookSpec spec = *HookSpec::Parse(testing::Form(GetParam()));
  const auto model = testing::Model(DType::kFloat32);
  auto from = *HookWorld::Make(2, spec, model, [] { return MakeEmulatedDevice(); });
  std::uint32_t step = 0;
  for (const testing::DeviceFactory& to :
       {testing::DeviceFactory(MakeHostDevice),
        testing::DeviceFactory([] { return MakeEmulatedDevice(); })}) {
    for (int i = 0; i < 5; ++i) {
      auto gradients = testing::Pack<float>(testing::RandomGradients(model, 2, step++));
      ASSERT_TRUE(from->RunStep(gradients, testing::kOne).ok());
    }
    const testing::Snapshot saved(*from);
    auto world = *HookWorld::Make(2, spec, model, to);
    ASSERT_TRUE(world->Import(saved.coordinator).ok());
    world->Reset();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(world->hook(rank).LoadState(saved.members[rank], model).ok());
    }
    EXPECT_TRUE(saved == testing::Snapshot(*world));
    from = std::move(world);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, PowerSgdOnGpu, testing::kForms);

TEST(HooksOnGpu, RegisteredHooksTakeTheHostsMemoryOnly) {
  emulation::Reset();
  const auto factory = [](const HookSpec&) { return std::unique_ptr<Hook>(); };
  ASSERT_TRUE(HookRegistry::Global().Register("of_the_host", factory).ok());
  const auto hook = MakeHook(*HookSpec::Parse("of_the_host"), MakeEmulatedDevice());
  EXPECT_EQ(hook.status().message(),
            "comm_hook: \"of_the_host\" is not built in, and such hooks take buckets in the host's "
            "memory only [GW401]");
}

TEST(HooksOnGpu, OutOfMemoryEndsTheStepWithAStatus) {
  emulation::Reset();
  const auto model = testing::Model(DType::kFloat32);
  const HookSpec spec = *HookSpec::Parse("power_sgd,start_powerSGD_iter=0");
  const auto gpu = *HookWorld::Make(1, spec, model, [] { return MakeEmulatedDevice(); });
  auto gradients = testing::Pack<float>(testing::RandomGradients(model, 1, 1));
  emulation::settings().fail_allocation = 9;
  const auto verdict = gpu->RunStep(gradients, testing::kOne);
  EXPECT_EQ(verdict.status().code(), absl::StatusCode::kResourceExhausted) << verdict.status();
}

}  // namespace
}  // namespace gradwire

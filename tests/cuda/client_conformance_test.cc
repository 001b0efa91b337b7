// The hooks' promises over a real daemon and the SDK, with gradients on the emulated GPU.
#include <cmath>

#include "gmock/gmock.h"
#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/gpu_memory.h"
#include "tests/hooks/power_sgd_world.h"

namespace gradwire::conformance {
namespace {

// GPU members, and ones whose gradients lie on the host.
MakeMemory Mixed() {
  return [](std::size_t rank) {
    return rank % 2 == 0 ? testing::MakeGpuMemory(rank) : MakeHostMemory(rank);
  };
}

absl::StatusOr<std::unique_ptr<Carrier>> MakeLate(int world_size, const HookSpec& spec,
                                                  const std::vector<ParameterSpec>& parameters) {
  emulation::Reset();
  return MakeDaemonCarrier(world_size, spec, parameters, testing::MakeGpuMemory);
}

absl::StatusOr<std::unique_ptr<Carrier>> MakeMixed(int world_size, const HookSpec& spec,
                                                   const std::vector<ParameterSpec>& parameters) {
  emulation::Reset();
  emulation::settings().eager = true;
  return MakeDaemonCarrier(world_size, spec, parameters, Mixed());
}

INSTANTIATE_TEST_SUITE_P(Late, HookConformance, ::testing::ValuesIn(AllCases("Late", MakeLate)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Mixed, HookConformance, ::testing::ValuesIn(AllCases("Mixed", MakeMixed)),
                         CaseName);

class PowerSgdMembers : public ::testing::TestWithParam<const char*> {};

double RelativeDifference(const MemberGradients& a, const MemberGradients& b) {
  double error = 0;
  double norm = 0;
  for (std::size_t p = 0; p < a.size(); ++p) {
    for (std::size_t i = 0; i < a[p].size() / sizeof(float); ++i) {
      const double x = testing::At<float>(a[p], i);
      error += std::pow(x - testing::At<float>(b[p], i), 2);
      norm += x * x;
    }
  }
  return std::sqrt(error / norm);
}

// PowerSGD's products may differ in their last bits from the host's (cuda_hooks_test has the
// tolerance); members agree on every bit.
TEST_P(PowerSgdMembers, AgreeAndAreCloseToMembersOnTheHost) {
  emulation::Reset();
  const HookSpec spec = *HookSpec::Parse(testing::Form(GetParam()));
  const auto model = testing::Model(DType::kFloat32);
  const auto host = MakeDaemonCarrier(3, spec, model);
  const auto mixed = MakeDaemonCarrier(3, spec, model, Mixed());
  ASSERT_TRUE(host.ok()) << host.status();
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  for (std::uint32_t step = 0; step < 6; ++step) {
    const auto gradients = testing::Pack<float>(testing::RandomGradients(model, 3, step));
    const auto& buckets = step % 2 == 0 ? testing::kOne : testing::kTwo;
    const auto expected = (*host)->RunStep(gradients, buckets);
    const auto actual = (*mixed)->RunStep(gradients, buckets);
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_TRUE(actual.ok()) << actual.status();
    EXPECT_THAT(actual->verdicts, ::testing::Each(Verdict::kApply));
    for (std::size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(actual->gradients[rank], actual->gradients[0]) << "rank " << rank;
    }
    EXPECT_LT(RelativeDifference(expected->gradients[0], actual->gradients[0]),
              spec.comm_wrapper == "fp16" ? 2e-3 : 1e-5)
        << "step " << step;
  }
  EXPECT_THAT(emulation::violations(), ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Forms, PowerSgdMembers, testing::kForms);

}  // namespace
}  // namespace gradwire::conformance

// The conformance suites on a real GPU. Without one they are skipped, with the reason.
#include "hooks/cuda/library.h"
#include "tests/conformance/hook_conformance.h"
#include "tests/cuda/device_conformance.h"

namespace gradwire::conformance {
namespace {

std::shared_ptr<Device> MakeGpu() {
  const auto& library = CudaLibrary::Global();
  auto device = library.ok() ? library->MakeDevice(0, std::chrono::minutes(1)) : library.status();
  EXPECT_TRUE(device.ok()) << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

absl::StatusOr<std::unique_ptr<Carrier>> MakeGpuCarrier(
    int world_size, const HookSpec& spec, const std::vector<ParameterSpec>& parameters) {
  return MakeDeviceCarrier(world_size, spec, parameters, MakeGpu);
}

template <class T>
std::vector<T> IfThereIsAGpu(std::vector<T> cases) {
  return CudaAvailable().ok() ? cases : std::vector<T>();
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceConformance,
                         ::testing::ValuesIn(IfThereIsAGpu<DeviceCase>({{"Gpu", MakeGpu}})),
                         DeviceName);
INSTANTIATE_TEST_SUITE_P(Gpu, HookConformance,
                         ::testing::ValuesIn(IfThereIsAGpu(AllCases("Gpu", MakeGpuCarrier))),
                         CaseName);

TEST(Gpu, IsThere) {
  if (!CudaAvailable().ok()) GTEST_SKIP() << CudaAvailable().message();
  EXPECT_NE(MakeGpu(), nullptr);
}

}  // namespace
}  // namespace gradwire::conformance

// CUDA's kernels and stream on the emulated GPU.
#include "tests/cuda/emulated_device.h"

#include <cuda_runtime.h>

#include <vector>

#include "hooks/cpu/host_device.h"
#include "hooks/device_vector.h"
#include "tests/cuda/device_conformance.h"
#include "tests/cuda/emulation/emulation.h"

namespace gradwire {
namespace {

using conformance::DeviceCase;
using conformance::DeviceConformance;
using emulation::Order;
using testing::MakeEmulatedDevice;

DeviceCase Emulated(const std::string& name, Order order, bool eager) {
  return {name, [order, eager] {
            emulation::Reset();
            emulation::settings().threads = order;
            emulation::settings().eager = eager;
            return MakeEmulatedDevice();
          }};
}

// The suite itself, on the device that it compares others with.
INSTANTIATE_TEST_SUITE_P(Host, DeviceConformance,
                         ::testing::Values(DeviceCase{"Host", MakeHostDevice}),
                         conformance::DeviceName);
// A barrier that is missing shows in one of the orders, an event in one of the times.
INSTANTIATE_TEST_SUITE_P(Emulated, DeviceConformance,
                         ::testing::Values(Emulated("LateForward", Order::kForward, false),
                                           Emulated("LateBackward", Order::kBackward, false),
                                           Emulated("EarlyForward", Order::kForward, true)),
                         conformance::DeviceName);

class EmulatedDevice : public ::testing::Test {
 protected:
  EmulatedDevice() { emulation::Reset(); }
  void TearDown() override { EXPECT_TRUE(emulation::violations().empty()); }
};

// What NCCL needs. The former GPU is the user's choice.
TEST_F(EmulatedDevice, SelectsItsGpuForOtherLibraries) {
  emulation::settings().devices = 2;
  const std::unique_ptr<Device> device(gradwire_cuda_open(1, 1000));
  EXPECT_NE(device->stream(), nullptr);
  int during = -1;
  int after = -1;
  device->WithSelected([&] { cudaGetDevice(&during); });
  cudaGetDevice(&after);
  EXPECT_EQ(during, 1);
  EXPECT_EQ(after, 0);
}

TEST(HostDevice, HasNoStream) {
  const auto host = MakeHostDevice();
  EXPECT_EQ(host->stream(), nullptr);
  bool called = false;
  host->WithSelected([&] { called = true; });
  EXPECT_TRUE(called);
}

TEST_F(EmulatedDevice, AllocatesNothingOnceItsMemoryIsThere) {
  const auto device = MakeEmulatedDevice();
  DeviceVector<float> values(*device);
  DeviceVector<double> sum(*device);
  const auto step = [&] {
    values.Resize(5000);
    sum.Resize(1);
    device->Zero(values.data(), values.bytes());
    device->Zero(sum.data(), sum.bytes());
    device->floats().AddSquares(values.size(), values.data(), sum.data());
    double result = 1;
    ASSERT_TRUE(device->Download(&result, sum.data(), sizeof(result)));
    EXPECT_EQ(result, 0);
  };
  step();
  const std::size_t before = emulation::counts().allocations;
  EXPECT_GT(before, 0U);
  step();
  EXPECT_EQ(emulation::counts().allocations, before);
}

TEST_F(EmulatedDevice, UploadsSmallPiecesTogether) {
  const auto device = MakeEmulatedDevice();
  std::vector<std::byte> bytes(100'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 253);
  std::vector<std::span<const std::byte>> pieces;
  for (std::size_t at = 0; at < bytes.size(); at += 1000) {
    pieces.push_back(std::span(bytes).subspan(at, 1000));
    pieces.emplace_back();
  }
  DeviceVector<std::byte> there(*device);
  there.Resize(bytes.size());
  const DeviceMark before = device->Record();
  device->UploadPieces(there.data(), pieces);
  EXPECT_EQ(device->Record(), before + 2) << "more than one transfer";
  std::vector<std::byte> back(bytes.size());
  ASSERT_TRUE(device->Download(back.data(), there.data(), back.size()));
  EXPECT_EQ(back, bytes);
}

TEST_F(EmulatedDevice, ReturnsBeforeItsWorkIsDone) {
  const auto device = MakeEmulatedDevice();
  DeviceVector<float> values(*device);
  values.Resize(1000);
  device->Zero(values.data(), values.bytes());
  EXPECT_FALSE(device->IsComplete(device->Record()));
}

TEST_F(EmulatedDevice, OutOfMemoryIsAnErrorThatSaysHowMuch) {
  const auto device = MakeEmulatedDevice();
  DeviceVector<float> fits(*device);
  fits.Resize(std::size_t{100} << 18);
  DeviceVector<float> too_much(*device);
  too_much.Resize(std::size_t{2000} << 18);
  EXPECT_TRUE(device->error().out_of_memory);
  EXPECT_EQ(device->error().text,
            "GPU 0 (emulated): out of memory: 2000 MiB asked for, 924 MiB of 1024 MiB free");
  // From here on nothing happens, and nothing waits.
  device->Zero(too_much.data(), too_much.bytes());
  float value = 0;
  EXPECT_FALSE(device->Download(&value, fits.data(), sizeof(value)));
  EXPECT_TRUE(device->IsComplete(device->Record()));
}

TEST_F(EmulatedDevice, LostIsAnErrorThatSaysDuringWhat) {
  const auto device = MakeEmulatedDevice();
  DeviceVector<float> values(*device);
  values.Resize(10);
  emulation::settings().lost = true;
  device->floats().Scale(values.size(), values.data(), 2);
  EXPECT_EQ(device->error().text,
            "GPU 0 (emulated): starting a kernel failed: cudaErrorIllegalAddress, as the emulation "
            "was told");
  EXPECT_FALSE(device->error().out_of_memory);
}

TEST_F(EmulatedDevice, WorkThatDoesNotEndIsAnErrorAfterTheTimeOut) {
  const auto device = MakeEmulatedDevice(20);
  DeviceVector<float> values(*device);
  values.Resize(10);
  device->Zero(values.data(), values.bytes());
  emulation::settings().stuck = true;
  float value = 0;
  EXPECT_FALSE(device->Download(&value, values.data(), sizeof(value)));
  EXPECT_EQ(device->error().text,
            "GPU 0 (emulated): a download was not complete after 20 ms; its work may wait for "
            "another stream");
}

TEST_F(EmulatedDevice, NoSuchGpuIsAnError) {
  const std::shared_ptr<Device> device(gradwire_cuda_open(7, 1000));
  EXPECT_NE(device->error().text.find("GPU 7: asking for its properties failed"), std::string::npos)
      << device->error().text;
  EXPECT_EQ(device->Allocate(10), nullptr);
}

TEST_F(EmulatedDevice, SaysWhyThereIsNoGpu) {
  char text[200] = "";
  EXPECT_TRUE(gradwire_cuda_available(text, sizeof(text)));
  EXPECT_STREQ(text, "");
  emulation::settings().devices = 0;
  EXPECT_FALSE(gradwire_cuda_available(text, sizeof(text)));
  EXPECT_STREQ(text, "there is no GPU, or none that CUDA_VISIBLE_DEVICES shows");
  emulation::settings().driver_version = 12040;
  EXPECT_FALSE(gradwire_cuda_available(text, sizeof(text)));
  EXPECT_STREQ(text,
               "the NVIDIA driver is for CUDA 12.4 and this library for CUDA 13.0; install a "
               "driver for CUDA 13 or later");
  emulation::settings().driver_version = 0;
  EXPECT_FALSE(gradwire_cuda_available(text, sizeof(text)));
  EXPECT_STREQ(text, "no NVIDIA driver is installed");
}

TEST_F(EmulatedDevice, LeavesTheThreadsGpuAsItWas) {
  emulation::settings().devices = 2;
  cudaSetDevice(1);
  const auto device = MakeEmulatedDevice();
  DeviceVector<float> values(*device);
  values.Resize(10);
  device->Zero(values.data(), values.bytes());
  device->Record();
  int selected = -1;
  cudaGetDevice(&selected);
  EXPECT_EQ(selected, 1);
}

}  // namespace
}  // namespace gradwire

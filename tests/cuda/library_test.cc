// How the CUDA library is found, opened and refused.
#include "hooks/cuda/library.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/cuda/device.h"
#include "tests/cuda/emulation/emulation.h"

namespace gradwire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kWait(1000);

std::string Refusal(const std::string& path) {
  const auto library = CudaLibrary::Open(path);
  EXPECT_EQ(library.status().code(), absl::StatusCode::kFailedPrecondition) << library.status();
  return std::string(library.status().message());
}

TEST(CudaLibrary, MakesDevices) {
  emulation::Reset();
  const auto library = CudaLibrary::Open(EMULATED);
  ASSERT_TRUE(library.ok()) << library.status();
  const auto device = library->MakeDevice(0, kWait);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(Name((*device)->id()), "cuda:0");
  std::byte* memory = (*device)->Allocate(8);
  (*device)->Zero(memory, 8);
  std::uint64_t value = 1;
  EXPECT_TRUE((*device)->Download(&value, memory, 8));
  EXPECT_EQ(value, 0U);
  EXPECT_THAT(library->MakeDevice(3, kWait).status().message(), HasSubstr("GPU 3: "));
}

TEST(CudaLibrary, SaysWhyNoGpuCanBeUsed) {
  emulation::Reset();
  emulation::settings().devices = 0;
  EXPECT_EQ(Refusal(EMULATED),
            "no GPU can be used: there is no GPU, or none that CUDA_VISIBLE_DEVICES shows [GW903]");
}

TEST(CudaLibrary, SaysThatThereIsNone) {
  EXPECT_THAT(
      Refusal("/nowhere/libgradwire_cuda.so"),
      AllOf(HasSubstr("/nowhere/libgradwire_cuda.so"), HasSubstr("build Gradwire where nvcc")));
}

TEST(CudaLibrary, RefusesAnotherInterface) {
  EXPECT_THAT(Refusal(OTHER), AllOf(HasSubstr(OTHER), HasSubstr("gradwire-cuda-0"),
                                    HasSubstr(GRADWIRE_CUDA_INTERFACE)));
}

TEST(CudaLibrary, RefusesAnotherLibrary) {
  EXPECT_THAT(Refusal(STRANGER), HasSubstr("is another library"));
}

// Where the library was built it lies beside this program, else it is nowhere; either way a machine
// without a GPU gets a reason.
TEST(CudaLibrary, TheProcesssOwnSaysWhyNot) {
  const absl::Status status = CudaAvailable();
  if (status.ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status, CudaAvailable());
#ifdef GRADWIRE_HAS_CUDA
  EXPECT_THAT(status.message(), HasSubstr("no GPU can be used: "));
#else
  EXPECT_THAT(status.message(), HasSubstr("the CUDA library cannot be used: "));
#endif
}

}  // namespace
}  // namespace gradwire

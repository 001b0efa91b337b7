// What a program is told when something about its GPU is wrong: in time, and by name.
#include <functional>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/gpu_memory.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kNumel = 3000;
const ParameterSpec kWeight{.name = "weight", .shape = {kNumel}, .dtype = DType::kFloat32};

class GpuFaults : public ::testing::Test {
 protected:
  GpuFaults() { emulation::Reset(); }

  ClientOptions Options() {
    return {.address = daemon_.address(),
            .session = "faults",
            .rank = 0,
            .world_size = 1,
            .parameters = {kWeight},
            .device = {DeviceKind::kCuda, 0},
            .cuda_library = EMULATED};
  }
  std::unique_ptr<Client> Join(const ClientOptions& options) {
    auto client = Client::Join(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  absl::Status Reduce(Client& client, GpuMemory& memory) {
    const std::vector<float> gradients(kNumel, 2);
    void* there = memory.Put(std::as_bytes(std::span(gradients)));
    auto bucket =
        *GradBucket::Make(0, {DType::kFloat32, there, kNumel, memory.device()}, {kWeight});
    return client.AllReduce(bucket, memory.stream()).Wait();
  }

  TestDaemon daemon_;
};

TEST_F(GpuFaults, NoneOfThem) {
  auto client = Join(Options());
  GpuMemory memory;
  EXPECT_EQ(Reduce(*client, memory), absl::OkStatus());
  EXPECT_EQ(*client->EndStep(), Verdict::kApply);
  EXPECT_EQ(client->Leave(), absl::OkStatus());
  EXPECT_THAT(emulation::violations(), ::testing::IsEmpty());
}

TEST_F(GpuFaults, JoinSaysThatThereIsNoLibrary) {
  ClientOptions options = Options();
  options.cuda_library = "/nowhere/libgradwire_cuda.so";
  const absl::Status status = Client::Join(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("device cuda:0: "), HasSubstr("/nowhere/"),
                                      HasSubstr("build Gradwire where nvcc")));
}

TEST_F(GpuFaults, JoinSaysThatTheDriverIsOld) {
  emulation::settings().driver_version = 12040;
  EXPECT_THAT(Client::Join(Options()).status().message(),
              HasSubstr("the NVIDIA driver is for CUDA 12.4 and this library for CUDA 13.0"));
}

TEST_F(GpuFaults, JoinSaysThatThereIsNoSuchGpu) {
  ClientOptions options = Options();
  options.device.index = 5;
  EXPECT_THAT(Client::Join(options).status().message(),
              AllOf(HasSubstr("device cuda:5: "), HasSubstr("GPU 5")));
  options.device.index = -1;
  EXPECT_EQ(Client::Join(options).status().message(),
            "device is \"cuda:-1\"; allowed: \"cpu\", \"cuda:0\" and up [GW400]");
}

TEST_F(GpuFaults, ABucketOfAnotherDeviceChangesNothing) {
  auto client = Join(Options());
  std::vector<float> gradients(kNumel, 1);
  auto bucket = *GradBucket::Make(0, {DType::kFloat32, gradients.data(), kNumel}, {kWeight});
  const absl::Status status = client->AllReduce(bucket).Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "the bucket's device is cpu; allowed: cuda:0, the device of this client's options [GW317]");
  GpuMemory memory;
  EXPECT_EQ(Reduce(*client, memory), absl::OkStatus());
}

TEST_F(GpuFaults, OutOfMemoryEndsTheSessionByName) {
  auto client = Join(Options());
  GpuMemory memory;
  const std::vector<float> gradients(kNumel, 2);
  void* there = memory.Put(std::as_bytes(std::span(gradients)));
  auto bucket = *GradBucket::Make(0, {DType::kFloat32, there, kNumel, memory.device()}, {kWeight});
  emulation::settings().fail_allocation = 1;
  const absl::Status status = client->AllReduce(bucket, memory.stream()).Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr("GPU 0 (emulated)"));
  EXPECT_EQ(client->EndStep().status(), status);
}

TEST_F(GpuFaults, AGpuThatIsLostInAStepEndsTheSessionByName) {
  auto client = Join(Options());
  GpuMemory memory;
  EXPECT_EQ(Reduce(*client, memory), absl::OkStatus());
  EXPECT_TRUE(client->EndStep().ok());
  const std::vector<float> gradients(kNumel, 2);
  void* there = memory.Put(std::as_bytes(std::span(gradients)));
  auto bucket = *GradBucket::Make(0, {DType::kFloat32, there, kNumel, memory.device()}, {kWeight});
  emulation::settings().lost = true;
  const absl::Status status = client->AllReduce(bucket, memory.stream()).Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("GPU 0"), HasSubstr("cudaErrorIllegalAddress")));
  EXPECT_EQ(client->EndStep().status(), status);
  emulation::settings().lost = false;
}

// The program forgot to enqueue what the stream waits for, say.
TEST_F(GpuFaults, GradientsThatDoNotComeAreAnErrorAfterTheStepTimeout) {
  ClientOptions options = Options();
  options.step_timeout = absl::Milliseconds(200);
  auto client = Join(options);
  emulation::settings().stuck = true;
  GpuMemory memory;
  const absl::Status status = Reduce(*client, memory);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(status.message(),
              HasSubstr("did not compute the gradients of a bucket within 200ms"));
  emulation::settings().stuck = false;
}

TEST_F(GpuFaults, AClientThatIsDestroyedInAStepEndsItsCalls) {
  auto client = Join(Options());
  emulation::settings().stuck = true;
  GpuMemory memory;
  const std::vector<float> gradients(kNumel, 2);
  void* there = memory.Put(std::as_bytes(std::span(gradients)));
  auto bucket = *GradBucket::Make(0, {DType::kFloat32, there, kNumel, memory.device()}, {kWeight});
  Completion waits = client->AllReduce(bucket, memory.stream());
  client.reset();
  EXPECT_EQ(waits.Wait().code(), absl::StatusCode::kCancelled);
  emulation::settings().stuck = false;
}

}  // namespace
}  // namespace gradwire::testing

// A wait that is left out gives a wrong result every time, because the emulated GPU works as late
// as it may.
#include "base/mutants.h"

#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "hooks/device_vector.h"
#include "tests/cuda/emulated_device.h"
#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/gpu_memory.h"
#include "tests/hooks/power_sgd_world.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

// Whether a step of two members gives what members on the host get.
bool StepIsRight() {
  const auto model = testing::Model(DType::kFloat32);
  const HookSpec spec = *HookSpec::Parse("no");
  const auto host = conformance::MakeDaemonCarrier(2, spec, model);
  const auto gpu = conformance::MakeDaemonCarrier(2, spec, model, testing::MakeGpuMemory);
  EXPECT_TRUE(host.ok()) << host.status();
  EXPECT_TRUE(gpu.ok()) << gpu.status();
  const auto gradients = testing::Pack<float>(testing::RandomGradients(model, 2, 1));
  const auto expected = (*host)->RunStep(gradients, testing::kOne);
  const auto actual = (*gpu)->RunStep(gradients, testing::kOne);
  EXPECT_TRUE(expected.ok() && actual.ok()) << expected.status() << actual.status();
  return actual.ok() && actual->gradients == expected->gradients;
}

std::unique_ptr<Client> JoinPair(const testing::TestDaemon& daemon, int rank,
                                 const ParameterSpec& parameter, DeviceId device) {
  const bool on_gpu = device.kind == DeviceKind::kCuda;
  auto client = Client::Join({.address = daemon.address(),
                              .session = "completion",
                              .rank = rank,
                              .world_size = 2,
                              .parameters = {parameter},
                              .hook = *HookSpec::Parse("bf16"),
                              .device = device,
                              .cuda_library = on_gpu ? EMULATED : ""});
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

// Whether a result is there when its completion is done. It is looked at on the thread that
// completes it, which is the one that asks the GPU how far it is: nothing comes in between. The
// other member contributes once the callback waits.
bool CompletionIsRight() {
  const ParameterSpec weight{.name = "weight", .shape = {1000}, .dtype = DType::kFloat32};
  const testing::TestDaemon daemon;
  std::unique_ptr<Client> host_client;
  std::thread join([&] { host_client = JoinPair(daemon, 1, weight, {}); });
  const auto client = JoinPair(daemon, 0, weight, {DeviceKind::kCuda, 0});
  join.join();
  if (client == nullptr || host_client == nullptr) return false;

  testing::GpuMemory memory;
  std::vector<float> values(1000, 1.0001F);
  std::vector<float> others = values;
  void* there = memory.Put(std::as_bytes(std::span(values)));
  auto bucket = *GradBucket::Make(0, {weight.dtype, there, 1000, memory.device()}, {weight});
  auto host_bucket = *GradBucket::Make(0, {weight.dtype, others.data(), 1000, {}}, {weight});
  Completion completion = client->AllReduce(bucket, memory.stream());
  completion.OnDone([&](const absl::Status& status) {
    EXPECT_EQ(status, absl::OkStatus());
    memory.Get(there, std::as_writable_bytes(std::span(values)));
  });
  EXPECT_EQ(host_client->AllReduce(host_bucket).Wait(), absl::OkStatus());
  EXPECT_EQ(completion.Wait(), absl::OkStatus());
  EXPECT_TRUE(client->EndStep().ok());
  EXPECT_TRUE(host_client->EndStep().ok());
  return values == std::vector<float>(1000, 1.0F);  // rounded to bfloat16
}

// Whether arrays of several pieces come back as they went.
bool TransfersAreRight() {
  constexpr std::size_t kNumel = 3'000'000;
  const auto device = testing::MakeEmulatedDevice();
  std::vector<std::uint8_t> values(kNumel);
  for (std::size_t i = 0; i < kNumel; ++i) values[i] = static_cast<std::uint8_t>(i % 251);
  DeviceVector<std::uint8_t> there(*device);
  there.Upload(values.data(), kNumel);
  std::vector<std::uint8_t> back(kNumel);
  device->Download(back.data(), there.data(), kNumel);
  return back == values;
}

struct Seeded {
  std::string name;
  DeviceMutant mutant;
  bool (*is_right)();
};

void PrintTo(const Seeded& seeded, std::ostream* out) { *out << seeded.name; }

class DeviceMutants : public ::testing::TestWithParam<Seeded> {
 protected:
  DeviceMutants() { emulation::Reset(); }
  ~DeviceMutants() override { active_device_mutant = DeviceMutant::kNone; }
};

TEST_P(DeviceMutants, ShowEveryTime) {
  for (int i = 0; i < 5; ++i) {
    active_device_mutant = DeviceMutant::kNone;
    EXPECT_TRUE(GetParam().is_right()) << "without the mutant";
    active_device_mutant = GetParam().mutant;
    EXPECT_FALSE(GetParam().is_right()) << "with the mutant";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Waits, DeviceMutants,
    ::testing::Values(
        Seeded{"GradientsNotAwaited", DeviceMutant::kGradientsNotAwaited, StepIsRight},
        Seeded{"ChunkSentEarly", DeviceMutant::kChunkSentEarly, StepIsRight},
        Seeded{"BucketDoneEarly", DeviceMutant::kBucketDoneEarly, CompletionIsRight},
        Seeded{"PinnedMemoryReusedEarly", DeviceMutant::kPinnedMemoryReusedEarly,
               TransfersAreRight},
        Seeded{"DownloadNotAwaited", DeviceMutant::kDownloadNotAwaited, TransfersAreRight}),
    [](const auto& seeded) { return seeded.param.name; });

}  // namespace
}  // namespace gradwire

// A coordinator that sums on GPUs: the host's bits, and what happens when a GPU fails.
#include "server/session/gpu_reducer.h"

#include <map>

#include "gmock/gmock.h"
#include "server/session/reduced_chunk.h"
#include "tests/conformance/daemon_carrier.h"
#include "tests/cuda/emulated_device.h"
#include "tests/cuda/emulation/emulation.h"
#include "tests/hooks/reference.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- The reducer alone

class Bytes final : public wire::Payload {
 public:
  explicit Bytes(std::vector<std::byte> bytes) : bytes_(std::move(bytes)), piece_(bytes_) {}
  std::span<const std::span<const std::byte>> pieces() const override { return {&piece_, 1}; }
  std::size_t bytes() const override { return bytes_.size(); }

 private:
  const std::vector<std::byte> bytes_;
  const std::span<const std::byte> piece_;
};

// A member's gradients, which the result may overwrite.
class Gradients final : public wire::Payload {
 public:
  Gradients(int rank, std::vector<std::byte> bytes)
      : bytes_(std::move(bytes)),
        piece_(bytes_),
        room_{.bytes = bytes_, .rank = rank, .stream = 1} {}
  std::span<const std::span<const std::byte>> pieces() const override { return {&piece_, 1}; }
  std::size_t bytes() const override { return bytes_.size(); }
  const wire::ResultRoom* result_room() const override { return &room_; }

 private:
  std::vector<std::byte> bytes_;
  const std::span<const std::byte> piece_;
  const wire::ResultRoom room_;
};

constexpr std::size_t kNumel = 2000;

std::vector<server::ReduceEffect> Batch(std::uint32_t chunks) {
  std::vector<server::ReduceEffect> batch;
  for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
    server::ReduceEffect sum{.id = {}, .chunk = chunk, .segment = {DType::kFloat32, kNumel}};
    for (std::uint64_t rank = 0; rank < 3; ++rank) {
      const auto values = reference::ModeratePatterns(DType::kFloat32, kNumel, 10 * chunk + rank);
      sum.inputs.push_back(std::make_shared<Bytes>(reference::Pack(DType::kFloat32, values)));
    }
    batch.push_back(std::move(sum));
  }
  return batch;
}

class GpuReducing : public ::testing::Test {
 protected:
  std::map<std::uint32_t, std::uint64_t> Reduce(server::Reducer& reducer, std::uint32_t chunks) {
    std::map<std::uint32_t, std::uint64_t> digests;
    reducer.Reduce(Batch(chunks), memory_, [&](std::vector<server::Reducer::Done> done) {
      for (const auto& one : done) {
        EXPECT_TRUE(digests.emplace(one.chunk, one.result->digest()).second) << "answered twice";
        EXPECT_EQ(one.result->kept()->digest(), one.result->digest());
        EXPECT_TRUE(one.outcome.finite);
      }
    });
    EXPECT_EQ(digests.size(), chunks);
    return digests;
  }
  std::unique_ptr<server::GpuReducer> Make(std::size_t gpus, std::size_t least_bytes = 0) {
    std::vector<std::shared_ptr<Device>> devices;
    for (std::size_t i = 0; i < gpus; ++i) devices.push_back(testing::MakeEmulatedDevice());
    return std::make_unique<server::GpuReducer>(
        devices, least_bytes, [] {},
        [this](const absl::Status& status) { failures_.emplace_back(status.message()); });
  }

  emulation::NewGpu gpu_;
  std::shared_ptr<server::SessionMemory> memory_ =
      std::make_shared<server::SessionMemory>(server::SessionMemory::Options{});
  server::CpuReducer cpu_{0, [] {}};
  std::vector<std::string> failures_;
};

TEST_F(GpuReducing, GivesTheProcessorsBits) {
  const auto reducer = Make(2);
  const auto expected = Reduce(cpu_, 5);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Reduce(*reducer, 5), expected);
  EXPECT_GE(emulation::counts().launches, 15U);
  EXPECT_THAT(failures_, ElementsAre());
}

// Gradients of float32 that a daemon casts to float16 itself, and the results over them.
TEST_F(GpuReducing, OverwritesContributionsAsTheProcessorDoes) {
  const auto overwritten = [&](server::Reducer& reducer) {
    server::ReduceEffect sum{.id = {}, .chunk = 0, .segment = {DType::kFloat16, kNumel}};
    sum.raw = {.dtype = DType::kFloat32, .divisor = 2, .is_raw = {true, true}};
    sum.in_place = true;
    std::vector<std::shared_ptr<Gradients>> gradients;
    for (int rank = 0; rank < 2; ++rank) {
      gradients.push_back(std::make_shared<Gradients>(
          rank, reference::Pack(DType::kFloat32,
                                reference::ModeratePatterns(DType::kFloat32, kNumel,
                                                            static_cast<std::uint64_t>(rank)))));
      sum.inputs.push_back(gradients.back());
    }
    bool in_place = false;
    reducer.Reduce({std::move(sum)}, memory_, [&](std::vector<server::Reducer::Done> done) {
      const server::Receiver to{.rank = 1, .stream = 1};
      in_place = std::holds_alternative<server::InPlace>(done.front().result->DeliveryTo(to));
    });
    EXPECT_TRUE(in_place);
    std::vector<std::vector<std::byte>> all;
    for (const auto& one : gradients) {
      all.emplace_back(one->pieces()[0].begin(), one->pieces()[0].end());
    }
    return all;
  };
  const auto reducer = Make(1);
  EXPECT_EQ(overwritten(*reducer), overwritten(cpu_));
  EXPECT_GT(emulation::counts().launches, 0U);
}

TEST_F(GpuReducing, SmallBatchesStayOnTheProcessor) {
  const auto reducer = Make(1, 3 * kNumel * sizeof(float) + 1);
  EXPECT_EQ(Reduce(*reducer, 1), Reduce(cpu_, 1));
  EXPECT_EQ(emulation::counts().launches, 0U);
  EXPECT_EQ(Reduce(*reducer, 2), Reduce(cpu_, 2));
  EXPECT_GT(emulation::counts().launches, 0U);
}

TEST_F(GpuReducing, AFailedGpuCostsNoResultAndIsReportedOnce) {
  const auto reducer = Make(1);
  const auto expected = Reduce(cpu_, 4);
  emulation::settings().fail_allocation = 2;  // in the middle of the first sum
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Reduce(*reducer, 4), expected);
  EXPECT_THAT(failures_, ElementsAre(HasSubstr("GPU 0 (emulated): out of memory")));
}

TEST_F(GpuReducing, TheOtherGpusGoOn) {
  const auto reducer = Make(2);
  const auto expected = Reduce(cpu_, 4);
  emulation::settings().fail_allocation = 2;
  EXPECT_EQ(Reduce(*reducer, 4), expected);
  const std::size_t before = emulation::counts().launches;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Reduce(*reducer, 4), expected);
  EXPECT_EQ(failures_.size(), 1U);
  EXPECT_EQ(emulation::counts().launches, before + 16);
}

// ---- A daemon with it

server::ServerOptions OnGpus(const std::string& reduce) {
  server::ServerOptions options;
  options.reduce = reduce;
  options.reduce_least_bytes = 0;
  options.cuda_library = EMULATED;
  return options;
}

TEST(GpuDaemon, RefusesWhatItCannotUse) {
  emulation::Reset();
  server::ServerOptions options = OnGpus("cuda:0,3");
  options.listen = {"127.0.0.1:0"};
  EXPECT_THAT(server::Server::Start(options).status().message(),
              HasSubstr("reduce is \"cuda:0,3\": GPU 3: "));
  emulation::settings().devices = 0;
  EXPECT_EQ(server::Server::Start(options).status().message(),
            "reduce is \"cuda:0,3\": no GPU can be used: there is no GPU, or none that "
            "CUDA_VISIBLE_DEVICES shows [GW609]");
  for (const char* bad :
       {"gpu", "cuda:", "cuda:0,", "cuda:0,0", "cuda:-1", "cuda:a", "cuda:1000"}) {
    options.reduce = bad;
    EXPECT_EQ(options.Validate().message(),
              std::string("reduce is \"") + bad +
                  "\"; allowed are cpu, cuda, and cuda:0,2 with each GPU once [GW602]");
  }
}

}  // namespace

namespace conformance {
namespace {

absl::StatusOr<std::unique_ptr<Carrier>> MakeCarrier(int world_size, const HookSpec& spec,
                                                     const std::vector<ParameterSpec>& parameters) {
  emulation::Reset();
  emulation::settings().devices = 2;
  return MakeDaemonCarrier(world_size, spec, parameters, MakeHostMemory, OnGpus("cuda"));
}

INSTANTIATE_TEST_SUITE_P(GpuDaemon, HookConformance,
                         ::testing::ValuesIn(AllCases("GpuDaemon", MakeCarrier)), CaseName);
// To the bit what the processor gives, orthonormal factors included.
INSTANTIATE_TEST_SUITE_P(GpuDaemon, PowerSgdConformance,
                         ::testing::ValuesIn(PowerSgdCases("GpuDaemon", MakeCarrier)), CaseName);

}  // namespace
}  // namespace conformance
}  // namespace gradwire

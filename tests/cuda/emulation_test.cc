// The emulated GPU itself: it does what a GPU would do, and finds what a GPU would not forgive.
#include "tests/cuda/emulation/emulation.h"

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda/emulation/shared_work.h"
#include "tests/hooks/reference.h"

namespace gradwire::emulation {
namespace {

constexpr unsigned kThreads = 64;

__global__ void SumOfBlock(const float* in, float* out, bool waits) {
  __shared__ float sums[kThreads];
  sums[threadIdx.x] = in[blockIdx.x * kThreads + threadIdx.x];
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (waits) __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

__global__ void SumOfWarps(const float* in, float* out) {
  float sum = in[threadIdx.x];
  for (unsigned other = 16; other > 0; other /= 2) {
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, other);
  }
  out[threadIdx.x] = sum;
}

__global__ void SomeLanesShuffle(float* out) {
  if (threadIdx.x == 5) return;
  out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFU, 1.0F, 1);
}

__global__ void Fill(float* out, std::size_t numel, float value) {
  const std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < numel) out[i] = value;
}

class Emulation : public ::testing::Test {
 protected:
  Emulation() {
    Reset();
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMemPoolCreate(&pool_, nullptr), cudaSuccess);
  }

  float* Allocate(std::size_t numel) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMallocFromPoolAsync(&memory, numel * sizeof(float), pool_, stream_), cudaSuccess);
    return static_cast<float*>(memory);
  }
  float* Pinned(std::size_t numel) {
    void* memory = nullptr;
    EXPECT_EQ(cudaHostAlloc(&memory, numel * sizeof(float), cudaHostAllocDefault), cudaSuccess);
    return static_cast<float*>(memory);
  }
  template <class... P, class... A>
  void Launch(cudaStream_t stream, unsigned blocks, void (*kernel)(P...), A... arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(kThreads);
    config.stream = stream;
    EXPECT_EQ(cudaLaunchKernelEx(&config, kernel, arguments...), cudaSuccess);
  }
  std::vector<float> Download(const float* from, std::size_t numel) {
    std::vector<float> values(numel);
    cudaMemcpyAsync(values.data(), from, numel * sizeof(float), cudaMemcpyDeviceToHost, stream_);
    return values;
  }

  cudaStream_t stream_ = nullptr;
  cudaStream_t other_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
};

TEST_F(Emulation, RunsBlocksWithBarriersAndSharedMemory) {
  const std::vector<float> in(2 * kThreads, 1.5F);
  float* there = Allocate(in.size());
  float* sums = Allocate(2);
  cudaMemcpyAsync(there, in.data(), in.size() * sizeof(float), cudaMemcpyHostToDevice, stream_);
  for (const Order order : {Order::kForward, Order::kBackward}) {
    settings().threads = order;
    Launch(stream_, 2, SumOfBlock, there, sums, true);
    EXPECT_THAT(Download(sums, 2), ::testing::Each(1.5F * kThreads));
  }
  EXPECT_THAT(violations(), ::testing::IsEmpty());
}

TEST_F(Emulation, AMissingBarrierGivesAWrongSumInOneOfTheOrders) {
  std::vector<float> in(kThreads);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i + 1);
  float* there = Allocate(in.size());
  float* sums = Allocate(1);
  cudaMemcpyAsync(there, in.data(), in.size() * sizeof(float), cudaMemcpyHostToDevice, stream_);
  bool right = true;
  for (const Order order : {Order::kForward, Order::kBackward}) {
    settings().threads = order;
    Launch(stream_, 1, SumOfBlock, there, sums, false);
    right = right && Download(sums, 1).front() == 0.5F * kThreads * (kThreads + 1);
  }
  EXPECT_FALSE(right);
}

TEST_F(Emulation, ShufflesWithinWarps) {
  std::vector<float> in(kThreads);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = i < 32 ? 1.0F : 2.0F;
  float* there = Allocate(in.size());
  float* sums = Allocate(in.size());
  cudaMemcpyAsync(there, in.data(), in.size() * sizeof(float), cudaMemcpyHostToDevice, stream_);
  Launch(stream_, 1, SumOfWarps, there, sums);
  const auto result = Download(sums, in.size());
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_EQ(result[i], i < 32 ? 32 : 64);
}

TEST_F(Emulation, AShuffleThatALaneMissesIsFound) {
  float* out = Allocate(kThreads);
  Launch(stream_, 1, SomeLanesShuffle, out);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_THAT(violations(), ::testing::ElementsAre("block (0, 0): thread 0 waits in a shuffle for "
                                                   "lane 5, which does not come"));
}

TEST_F(Emulation, DoesNothingBeforeSomebodyWaits) {
  float* there = Allocate(1);
  float* here = Pinned(1);
  *here = 7;
  Launch(stream_, 1, Fill, there, std::size_t{1}, 3.0F);
  cudaMemcpyAsync(here, there, sizeof(float), cudaMemcpyDeviceToHost, stream_);
  EXPECT_EQ(*here, 7);
  for (int i = 0; i < settings().unready_queries; ++i) {
    EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
    EXPECT_EQ(*here, 7);
  }
  EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess);
  EXPECT_EQ(*here, 3);
}

TEST_F(Emulation, PinnedMemoryIsReadWhenTheCopyRuns) {
  float* there = Allocate(1);
  float* here = Pinned(1);
  *here = 7;
  cudaMemcpyAsync(there, here, sizeof(float), cudaMemcpyHostToDevice, stream_);
  *here = 8;
  EXPECT_EQ(Download(there, 1).front(), 8);
  float value = 5;
  cudaMemcpyAsync(there, &value, sizeof(float), cudaMemcpyHostToDevice, stream_);
  value = 6;
  EXPECT_EQ(Download(there, 1).front(), 5);
}

TEST_F(Emulation, AStreamThatDoesNotWaitForAnotherComesFirst) {
  float* there = Allocate(1);
  cudaStreamSynchronize(stream_);
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  for (const bool waits : {false, true}) {
    Launch(stream_, 1, Fill, there, std::size_t{1}, 1.0F);
    cudaStreamSynchronize(stream_);
    Launch(other_, 1, Fill, there, std::size_t{1}, 2.0F);
    cudaEventRecord(event, other_);
    if (waits) cudaStreamWaitEvent(stream_, event);
    EXPECT_EQ(Download(there, 1).front(), waits ? 2 : 1);
    cudaStreamSynchronize(other_);
  }
}

TEST_F(Emulation, AnEventStandsForWhatCameBeforeIt) {
  float* there = Allocate(1);
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  float* here = Pinned(2);
  here[0] = here[1] = 0;
  Launch(stream_, 1, Fill, there, std::size_t{1}, 1.0F);
  cudaMemcpyAsync(&here[0], there, sizeof(float), cudaMemcpyDeviceToHost, stream_);
  cudaEventRecord(event, stream_);
  cudaMemcpyAsync(&here[1], there, sizeof(float), cudaMemcpyDeviceToHost, stream_);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(here[0], 1);
  EXPECT_EQ(here[1], 0);
}

TEST_F(Emulation, NewMemoryIsNaNAndFreedMemoryIsGone) {
  float* there = Allocate(4);
  const float value = Download(there, 1).front();
  EXPECT_NE(value, value);
  EXPECT_EQ(cudaFreeAsync(there, stream_), cudaSuccess);
  cudaMemsetAsync(there, 0, 4, stream_);
  cudaStreamSynchronize(stream_);
  EXPECT_THAT(violations(), ::testing::ElementsAre("a write of memory that is not there"));
}

TEST_F(Emulation, ACopyBeyondABlockIsFound) {
  float* there = Allocate(4);
  Download(there, 5);
  EXPECT_THAT(violations(), ::testing::ElementsAre("a read of memory that is not there"));
}

TEST_F(Emulation, WaitingForTheWholeDeviceIsFound) {
  cudaDeviceSynchronize();
  EXPECT_THAT(violations(), ::testing::SizeIs(1));
}

using EmulationDeath = Emulation;

TEST_F(EmulationDeath, TheHostCannotTouchTheGpusMemory) {
  float* there = Allocate(1);
  cudaStreamSynchronize(stream_);
  EXPECT_DEATH(*static_cast<volatile float*>(there) = 1, "");
}

TEST_F(Emulation, FailsAsTold) {
  settings().fail_allocation = 2;
  Allocate(1);
  void* memory = nullptr;
  EXPECT_EQ(cudaMallocFromPoolAsync(&memory, 4, pool_, stream_), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  settings().lost = true;
  EXPECT_EQ(cudaMallocFromPoolAsync(&memory, 4, pool_, stream_), cudaErrorIllegalAddress);
  settings().lost = false;
  settings().stuck = true;
  Launch(stream_, 1, Fill, Allocate(1), std::size_t{1}, 1.0F);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
}

TEST(EmulatedHalf, ConvertsAsTheFormatsAreDefined) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    if (reference::IsNan(DType::kFloat16, bits)) continue;
    EXPECT_EQ(__half2float(__ushort_as_half(static_cast<std::uint16_t>(bits))),
              static_cast<float>(reference::Decode(DType::kFloat16, bits)));
  }
  reference::Random random(3);
  for (int i = 0; i < 100000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random.Next());
    const float value = __uint_as_float(bits);
    const std::uint64_t expected =
        value == value ? reference::Convert(DType::kFloat32, bits, DType::kFloat16) : 0x7FFF;
    ASSERT_EQ(__half_as_ushort(__float2half_rn(value)), expected) << bits;
  }
}

// ---- Work that other processes take part in

TEST_F(Emulation, WorkOfSeveralProcessesIsNotReadyUntilItIsDone) {
  float* there = Allocate(1);
  int advanced = 0;
  bool done = false;
  EnqueueShared(stream_, [&] {
    ++advanced;
    EXPECT_TRUE(IsThere(there, sizeof(float), "a test"));
    *there = 5;
    return done;
  });
  EXPECT_EQ(advanced, 0) << "as late as possible";
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, stream_);
  cudaStreamWaitEvent(other_, event);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
    EXPECT_EQ(cudaStreamQuery(other_), cudaErrorNotReady);
  }
  EXPECT_GT(advanced, 0);
  done = true;
  EXPECT_EQ(cudaStreamQuery(other_), cudaSuccess);
  EXPECT_EQ(Download(there, 1), std::vector<float>{5});
  EXPECT_THAT(violations(), ::testing::IsEmpty());
}

TEST_F(Emulation, AWaitLetsOtherThreadsUseTheGpu) {
  std::atomic<bool> advanced = false;
  std::atomic<bool> done = false;
  EnqueueShared(stream_, [&] {
    advanced = true;
    return done.load();
  });
  std::thread other([&] {
    while (!advanced) std::this_thread::yield();
    EXPECT_EQ(cudaStreamQuery(other_), cudaSuccess);
    done = true;
  });
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  other.join();
}

}  // namespace
}  // namespace gradwire::emulation

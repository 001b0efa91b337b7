// A member whose gradients lie on the emulated GPU, with a stream of its own.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/daemon_carrier.h"

namespace gradwire::testing {

class GpuMemory final : public conformance::MemberMemory {
 public:
  GpuMemory() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    const cudaMemPoolProps pool{cudaMemAllocationTypePinned, {cudaMemLocationTypeDevice, 0}};
    EXPECT_EQ(cudaMemPoolCreate(&pool_, &pool), cudaSuccess);
  }
  ~GpuMemory() override {
    Clear();
    cudaStreamDestroy(stream_);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  DeviceId device() const override { return {DeviceKind::kCuda, 0}; }
  std::string library() const override { return EMULATED; }
  void* stream() override { return stream_; }

  // The copy waits in the stream, as the work of a backward pass does.
  void* Put(std::span<const std::byte> bytes) override {
    if (bytes.empty()) return nullptr;
    void* there = nullptr;
    void* pinned = nullptr;
    EXPECT_EQ(cudaMallocFromPoolAsync(&there, bytes.size(), pool_, stream_), cudaSuccess);
    EXPECT_EQ(cudaHostAlloc(&pinned, bytes.size(), cudaHostAllocDefault), cudaSuccess);
    std::memcpy(pinned, bytes.data(), bytes.size());
    cudaMemcpyAsync(there, pinned, bytes.size(), cudaMemcpyHostToDevice, stream_);
    buffers_.push_back(there);
    pinned_.push_back(pinned);
    return there;
  }

  // No wait for the client's stream: its work is over when a completion is done.
  void Get(const void* from, std::span<std::byte> bytes) override {
    if (bytes.empty()) return;
    void* pinned = nullptr;
    EXPECT_EQ(cudaHostAlloc(&pinned, bytes.size(), cudaHostAllocDefault), cudaSuccess);
    cudaMemcpyAsync(pinned, from, bytes.size(), cudaMemcpyDeviceToHost, stream_);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    std::memcpy(bytes.data(), pinned, bytes.size());
    cudaFreeHost(pinned);
  }

  void Clear() override {
    for (void* buffer : buffers_) cudaFreeAsync(buffer, stream_);
    cudaStreamSynchronize(stream_);
    for (void* pinned : pinned_) cudaFreeHost(pinned);
    buffers_.clear();
    pinned_.clear();
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  std::vector<void*> buffers_;
  std::vector<void*> pinned_;
};

inline std::unique_ptr<conformance::MemberMemory> MakeGpuMemory(std::size_t /*rank*/) {
  return std::make_unique<GpuMemory>();
}

}  // namespace gradwire::testing

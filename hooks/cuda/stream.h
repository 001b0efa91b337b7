// The stream of one CUDA device, and what every kernel's launcher needs of it.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hooks/device.h"

namespace gradwire::cuda {

// Threads of a block, in all kernels.
inline constexpr unsigned kThreads = 256;

// The GPU that a thread's calls are for is a setting of the thread, which the user's code has made,
// too: this selects another one and puts the former back.
class Selected {
 public:
  explicit Selected(int ordinal);
  ~Selected();
  Selected(const Selected&) = delete;
  Selected& operator=(const Selected&) = delete;

 private:
  int former_ = -1;
};

// Work is enqueued; the first error is kept, and from then on every call does nothing.
//
// Not thread-safe. Its calls select their GPU for the calling thread and put the former one back.
class Stream {
 public:
  // `wait` bounds each wait for the GPU. An error of the GPU's shows in error().
  Stream(int ordinal, std::chrono::milliseconds wait);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int ordinal() const { return ordinal_; }
  cudaStream_t stream() const { return stream_; }
  const DeviceError& error() const { return error_; }
  bool failed() const { return !error_.text.empty(); }

  // Enqueues a kernel. `blocks` may be 0: nothing to do.
  template <class... P, class... A>
  void Launch(dim3 blocks, void (*kernel)(P...), A&&... arguments) {
    if (failed() || blocks.x == 0 || blocks.y == 0) return;
    const Selected selected(ordinal_);
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = dim3(kThreads);
    config.stream = stream_;
    Check(cudaLaunchKernelEx(&config, kernel, std::forward<A>(arguments)...), "starting a kernel");
  }

  // Blocks that keep the GPU busy; more of them share it evenly.
  std::size_t wanted_blocks() const { return 2 * static_cast<std::size_t>(processors_); }

  std::byte* Allocate(std::size_t bytes);
  void Free(std::byte* memory);
  // Memory for the work of one launcher: the next call of Scratch ends its use, in the stream's
  // order. Null after an error.
  std::byte* Scratch(std::size_t bytes);

  void Copy(void* to, const void* from, std::size_t bytes);
  void Zero(void* to, std::size_t bytes);
  void Upload(void* to, std::span<const std::span<const std::byte>> pieces);
  void Upload(void* to, const void* from, std::size_t bytes) {
    const std::span<const std::byte> piece(static_cast<const std::byte*>(from), bytes);
    Upload(to, {&piece, 1});
  }
  bool Download(void* to, const void* from, std::size_t bytes);

  std::shared_ptr<std::byte> AllocatePinned(std::size_t bytes);
  void DownloadLater(std::byte* to, const void* from, std::size_t bytes);

  DeviceMark Record();
  bool IsComplete(DeviceMark mark);

 private:
  struct Event {
    DeviceMark mark = 0;
    cudaEvent_t event = nullptr;
  };

  bool Check(cudaError_t result, const char* doing);
  void Fail(bool out_of_memory, const std::string& text);
  // Waits until the mark is complete, or fails.
  bool Wait(DeviceMark mark, const char* what);
  std::byte* AllocateHost(std::size_t bytes);
  std::byte* Pinned();
  // Sends what was copied to the piece that Pinned returned last.
  bool SendPinned(void* to, const std::byte* pinned, std::size_t bytes);

  const int ordinal_;
  const std::chrono::milliseconds wait_;
  DeviceError error_;
  std::string name_;
  int processors_ = 1;
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  // Uploads and downloads go through two pieces of pinned memory, so that no call waits for the GPU
  // inside the driver, where it could wait for ever.
  std::byte* pinned_ = nullptr;
  DeviceMark pinned_marks_[2] = {};
  unsigned next_piece_ = 0;
  DeviceMark recorded_ = 0;
  DeviceMark complete_ = 0;
  std::deque<Event> pending_;
  std::vector<cudaEvent_t> free_events_;
};

// See hooks/device.h.
class StreamEvent final : public DeviceEvent {
 public:
  StreamEvent(int ordinal, cudaStream_t stream);
  ~StreamEvent() override;
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;

  bool IsComplete(DeviceError& error) override;

 private:
  const int ordinal_;
  cudaEvent_t event_ = nullptr;
  cudaError_t failure_ = cudaSuccess;
};

}  // namespace gradwire::cuda

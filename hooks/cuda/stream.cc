#include "hooks/cuda/stream.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/mutants.h"

namespace gradwire::cuda {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

// Between two questions whether the GPU is done. Shorter than a chunk takes on its way.
constexpr std::chrono::microseconds kPoll(20);

std::string MiB(std::size_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

}  // namespace

Selected::Selected(int ordinal) {
  if (cudaGetDevice(&former_) != cudaSuccess || former_ == ordinal) former_ = -1;
  cudaSetDevice(ordinal);
}

Selected::~Selected() {
  if (former_ >= 0) cudaSetDevice(former_);
}

Stream::Stream(int ordinal, std::chrono::milliseconds wait) : ordinal_(ordinal), wait_(wait) {
  const Selected selected(ordinal);
  cudaDeviceProp properties{};
  if (!Check(cudaGetDeviceProperties(&properties, ordinal), "asking for its properties")) return;
  name_ = properties.name;
  processors_ = properties.multiProcessorCount;
  if (!Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream")) return;
  // A pool of its own, which keeps what is freed: the process's default pool is the user's.
  cudaMemPoolProps pool{};
  pool.allocType = cudaMemAllocationTypePinned;
  pool.location.type = cudaMemLocationTypeDevice;
  pool.location.id = ordinal;
  if (!Check(cudaMemPoolCreate(&pool_, &pool), "making a memory pool")) return;
  std::uint64_t keep = ~std::uint64_t{0};
  Check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep),
        "setting up a memory pool");
}

// Destroying a stream or an event lets pending work end. The pool's memory goes back to the system
// once the last of it is freed.
Stream::~Stream() {
  const Selected selected(ordinal_);
  if (scratch_ != nullptr) cudaFreeAsync(scratch_, stream_);
  if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  // Pinned memory is freed at once, so what still reads it has to be over. After an error nothing
  // reads it any more, or nobody can say until when: then it is left to the process's end.
  if (pinned_ != nullptr && (cudaStreamQuery(stream_) == cudaSuccess || Wait(recorded_, ""))) {
    cudaFreeHost(pinned_);
  }
  for (const Event& pending : pending_) cudaEventDestroy(pending.event);
  for (const cudaEvent_t event : free_events_) cudaEventDestroy(event);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void Stream::Fail(bool out_of_memory, const std::string& text) {
  if (failed()) return;
  error_ = {.out_of_memory = out_of_memory,
            .text = "GPU " + std::to_string(ordinal_) + (name_.empty() ? "" : " (" + name_ + ")") +
                    ": " + text};
}

bool Stream::Check(cudaError_t result, const char* doing) {
  if (result == cudaSuccess) return true;
  Fail(result == cudaErrorMemoryAllocation, std::string(doing) +
                                                " failed: " + cudaGetErrorName(result) + ", " +
                                                cudaGetErrorString(result));
  // Errors that only concern one call would otherwise show in a later one.
  cudaGetLastError();
  return false;
}

// ---- Memory

std::byte* Stream::Allocate(std::size_t bytes) {
  if (failed() || bytes == 0) return nullptr;
  const Selected selected(ordinal_);
  void* memory = nullptr;
  const cudaError_t result = cudaMallocFromPoolAsync(&memory, bytes, pool_, stream_);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    cudaMemGetInfo(&free, &total);
    Fail(true, "out of memory: " + MiB(bytes) + " asked for, " + MiB(free) + " of " + MiB(total) +
                   " free");
    return nullptr;
  }
  return Check(result, "allocating memory") ? static_cast<std::byte*>(memory) : nullptr;
}

void Stream::Free(std::byte* memory) {
  if (memory == nullptr || stream_ == nullptr) return;
  const Selected selected(ordinal_);
  Check(cudaFreeAsync(memory, stream_), "freeing memory");
}

std::byte* Stream::Scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    Free(scratch_);
    scratch_ = Allocate(bytes);
    scratch_bytes_ = scratch_ == nullptr ? 0 : bytes;
  }
  return scratch_;
}

void Stream::Copy(void* to, const void* from, std::size_t bytes) {
  if (failed() || bytes == 0) return;
  const Selected selected(ordinal_);
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying");
}

void Stream::Zero(void* to, std::size_t bytes) {
  if (failed() || bytes == 0) return;
  const Selected selected(ordinal_);
  Check(cudaMemsetAsync(to, 0, bytes, stream_), "zeroing memory");
}

// A piece of pinned memory whose last use is over.
std::byte* Stream::Pinned() {
  if (failed()) return nullptr;
  const Selected selected(ordinal_);
  if (pinned_ == nullptr) pinned_ = AllocateHost(2 * kPieceBytes);
  if (pinned_ == nullptr) return nullptr;
  next_piece_ ^= 1U;
  if (!IsActive(DeviceMutant::kPinnedMemoryReusedEarly) &&
      !Wait(pinned_marks_[next_piece_], "an earlier transfer")) {
    return nullptr;
  }
  return pinned_ + next_piece_ * kPieceBytes;
}

std::byte* Stream::AllocateHost(std::size_t bytes) {
  if (failed()) return nullptr;
  const Selected selected(ordinal_);
  void* memory = nullptr;
  return Check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "allocating pinned memory")
             ? static_cast<std::byte*>(memory)
             : nullptr;
}

// Freed on any thread, so the deleter refers to nothing here.
std::shared_ptr<std::byte> Stream::AllocatePinned(std::size_t bytes) {
  std::byte* memory = AllocateHost(bytes);
  if (memory == nullptr) return nullptr;
  return {memory, [](std::byte* pinned) { cudaFreeHost(pinned); }};
}

void Stream::DownloadLater(std::byte* to, const void* from, std::size_t bytes) {
  if (failed() || bytes == 0) return;
  const Selected selected(ordinal_);
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "downloading");
}

bool Stream::SendPinned(void* to, const std::byte* pinned, std::size_t bytes) {
  const Selected selected(ordinal_);
  if (!Check(cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, stream_), "uploading")) {
    return false;
  }
  pinned_marks_[next_piece_] = Record();
  return true;
}

// Pieces of the host are collected, because each transfer takes microseconds however small it is.
void Stream::Upload(void* to, std::span<const std::span<const std::byte>> pieces) {
  auto* at = static_cast<std::byte*>(to);
  std::byte* pinned = nullptr;
  std::size_t filled = 0;
  for (std::span<const std::byte> rest : pieces) {
    while (!rest.empty()) {
      if (pinned == nullptr) pinned = Pinned();
      if (pinned == nullptr) return;
      const std::size_t part = std::min(rest.size(), kPieceBytes - filled);
      std::memcpy(pinned + filled, rest.data(), part);
      rest = rest.subspan(part);
      filled += part;
      if (filled < kPieceBytes) continue;
      if (!SendPinned(at, pinned, filled)) return;
      at += filled;
      pinned = nullptr;
      filled = 0;
    }
  }
  if (filled > 0) SendPinned(at, pinned, filled);
}

// While one piece is copied out, the next one is on its way.
bool Stream::Download(void* to, const void* from, std::size_t bytes) {
  std::byte* ahead = nullptr;  // pinned memory that the piece at `done` comes to
  std::size_t asked = 0;
  for (std::size_t done = 0; done < bytes;) {
    const std::byte* arriving = ahead;
    const unsigned arriving_piece = next_piece_;
    ahead = nullptr;
    if (asked < bytes) {
      ahead = Pinned();
      if (ahead == nullptr) return false;
      const std::size_t piece = std::min(bytes - asked, kPieceBytes);
      const Selected selected(ordinal_);
      if (!Check(cudaMemcpyAsync(ahead, static_cast<const std::byte*>(from) + asked, piece,
                                 cudaMemcpyDeviceToHost, stream_),
                 "downloading")) {
        return false;
      }
      pinned_marks_[next_piece_] = Record();
      asked += piece;
    }
    if (arriving == nullptr) continue;
    if (!IsActive(DeviceMutant::kDownloadNotAwaited) &&
        !Wait(pinned_marks_[arriving_piece], "a download")) {
      return false;
    }
    const std::size_t piece = std::min(bytes - done, kPieceBytes);
    std::memcpy(static_cast<std::byte*>(to) + done, arriving, piece);
    done += piece;
  }
  return !failed();
}

// ---- Completion

DeviceMark Stream::Record() {
  if (failed()) return recorded_;
  const Selected selected(ordinal_);
  cudaEvent_t event = nullptr;
  if (!free_events_.empty()) {
    event = free_events_.back();
    free_events_.pop_back();
  } else if (!Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event")) {
    return recorded_;
  }
  if (!Check(cudaEventRecord(event, stream_), "recording an event")) {
    free_events_.push_back(event);
    return recorded_;
  }
  pending_.push_back({++recorded_, event});
  return recorded_;
}

bool Stream::IsComplete(DeviceMark mark) {
  const Selected selected(ordinal_);
  while (complete_ < mark && !failed() && !pending_.empty()) {
    const cudaError_t result = cudaEventQuery(pending_.front().event);
    if (result == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    if (!Check(result, "waiting")) break;
    complete_ = pending_.front().mark;
    free_events_.push_back(pending_.front().event);
    pending_.pop_front();
  }
  return complete_ >= mark || failed();
}

bool Stream::Wait(DeviceMark mark, const char* what) {
  const auto deadline = std::chrono::steady_clock::now() + wait_;
  while (!IsComplete(mark)) {
    if (std::chrono::steady_clock::now() > deadline) {
      Fail(false, std::string(what) + " was not complete after " + std::to_string(wait_.count()) +
                      " ms; its work may wait for another stream");
      return false;
    }
    std::this_thread::sleep_for(kPoll);
  }
  return !failed();
}

// ---- Streams of the user's

StreamEvent::StreamEvent(int ordinal, cudaStream_t stream) : ordinal_(ordinal) {
  const Selected selected(ordinal);
  failure_ = cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
  if (failure_ == cudaSuccess) failure_ = cudaEventRecord(event_, stream);
  if (failure_ != cudaSuccess) cudaGetLastError();
}

StreamEvent::~StreamEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

bool StreamEvent::IsComplete(DeviceError& error) {
  const Selected selected(ordinal_);
  const cudaError_t result = failure_ != cudaSuccess ? failure_ : cudaEventQuery(event_);
  if (result == cudaSuccess) return true;
  cudaGetLastError();
  if (result == cudaErrorNotReady) return false;
  error.text = "GPU " + std::to_string(ordinal_) +
               ": waiting for the gradients failed: " + cudaGetErrorName(result) + ", " +
               cudaGetErrorString(result);
  return true;
}

}  // namespace gradwire::cuda

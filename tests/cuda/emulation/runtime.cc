// The emulated runtime: streams, events, copies and faults.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda/emulation/arena.h"
#include "tests/cuda/emulation/block.h"
#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/emulation/shared_work.h"

// One record of an event: complete once its stream has come so far.
struct Record {
  EmulatedStream* stream = nullptr;
  std::size_t position = 0;  // of the stream's work that it stands for
  int queries = 0;
};

struct EmulatedStream {
  struct Work {
    std::function<void()> run;
    std::shared_ptr<Record> after;       // of another stream, which has to come first
    std::function<bool()> advance = {};  // in place of `run`: whether it is done
  };
  const int device;
  std::deque<Work> waiting;
  std::size_t enqueued = 0;
  std::size_t done = 0;
  int queries = 0;

  explicit EmulatedStream(int ordinal) : device(ordinal) {}
};

struct EmulatedEvent {
  std::shared_ptr<Record> record;  // null: never recorded
};

struct EmulatedPool {};

namespace gradwire::emulation {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{1} << 32;
constexpr std::size_t kDeviceBytes = std::size_t{1} << 30;

struct Gpu {
  Settings settings;
  Counts counts;
  std::vector<std::string> violations;
  Arena arena{kArenaBytes};
  std::map<const void*, std::size_t> sizes;  // of the blocks that the calls have not freed
  std::map<const char*, std::vector<char>> pinned;
  std::vector<std::unique_ptr<EmulatedStream>> streams;  // a destroyed one, too: work may wait
  std::vector<std::unique_ptr<EmulatedEvent>> events;
  std::vector<std::unique_ptr<EmulatedPool>> pools;
  cudaError_t last = cudaSuccess;
};

std::unique_ptr<Gpu>& Current() {
  static std::unique_ptr<Gpu> gpu = std::make_unique<Gpu>();
  return gpu;
}
Gpu& gpu() { return *Current(); }

// Calls may come from several threads, as the runtime allows; the GPU is one.
struct Lock {
  mutable std::unique_lock<std::recursive_mutex> held{Mutex()};
  static std::recursive_mutex& Mutex() {
    static std::recursive_mutex mutex;
    return mutex;
  }
};

// Of the calling thread.
thread_local int selected_device = 0;

void Violation(const std::string& text) { gpu().violations.push_back(text); }

cudaError_t Result(cudaError_t error) {
  if (error != cudaSuccess) gpu().last = error;
  return error;
}

bool IsLost() { return gpu().settings.lost; }
cudaError_t Lost() { return Result(cudaErrorIllegalAddress); }

bool RunNow(const EmulatedStream::Work& work) {
  if (!work.run && !work.advance) return true;
  gpu().arena.Enter();
  const bool done = work.advance ? work.advance() : (work.run(), true);
  gpu().arena.Leave();
  return done;
}

// Returns whether the stream has come so far: other processes may have to take part in its work.
bool RunUntil(EmulatedStream& stream, std::size_t position) {
  // A stream that waits for itself in a circle cannot come about: events are recorded before.
  while (stream.done < position && !stream.waiting.empty()) {
    const EmulatedStream::Work& work = stream.waiting.front();
    if (work.after != nullptr && !RunUntil(*work.after->stream, work.after->position)) return false;
    if (!RunNow(work)) return false;
    stream.waiting.pop_front();
    ++stream.done;
  }
  return true;
}

// As a call does that blocks its thread. Others may use the GPU meanwhile.
void WaitUntil(EmulatedStream& stream, std::size_t position, const Lock& lock) {
  while (!RunUntil(stream, position)) {
    lock.held.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    lock.held.lock();
  }
}

void Enqueue(EmulatedStream* stream, std::function<void()> run,
             std::shared_ptr<Record> after = nullptr, std::function<bool()> advance = {}) {
  stream->waiting.push_back({std::move(run), std::move(after), std::move(advance)});
  ++stream->enqueued;
  stream->queries = 0;
  if (gpu().settings.eager && !gpu().settings.stuck) RunUntil(*stream, stream->enqueued);
}

// `queries` counts how often this was asked.
cudaError_t Query(EmulatedStream& stream, std::size_t position, int& queries) {
  if (IsLost()) return Lost();
  if (stream.done >= position) return cudaSuccess;
  if (gpu().settings.stuck || ++queries <= gpu().settings.unready_queries) {
    return Result(cudaErrorNotReady);
  }
  return RunUntil(stream, position) ? cudaSuccess : Result(cudaErrorNotReady);
}

bool IsPinned(const void* at, std::size_t bytes) {
  const auto* begin = static_cast<const char*>(at);
  auto after = gpu().pinned.upper_bound(begin);
  if (after == gpu().pinned.begin()) return false;
  const auto& [memory, block] = *std::prev(after);
  const auto offset = static_cast<std::size_t>(begin - memory);
  return offset <= block.size() && bytes <= block.size() - offset;
}

// When the work runs: whether the bytes are there.
bool Reachable(const void* at, std::size_t bytes, const char* what) {
  const bool fine = gpu().arena.Contains(at) ? gpu().arena.IsOpen(at, bytes) : IsPinned(at, bytes);
  if (!fine) Violation(std::string(what) + " of memory that is not there");
  return fine;
}

bool FailsNow() {
  int& left = gpu().settings.fail_allocation;
  return left > 0 && --left == 0;
}

}  // namespace

void Reset() {
  const Lock lock;
  selected_device = 0;
  Current().reset();
  Current() = std::make_unique<Gpu>();
}
Settings& settings() { return gpu().settings; }
Counts counts() { return gpu().counts; }
const std::vector<std::string>& violations() { return gpu().violations; }

std::unique_lock<std::recursive_mutex> LockGpu() {
  return std::unique_lock<std::recursive_mutex>(Lock::Mutex());
}
int DeviceOf(const EmulatedStream* stream) { return stream->device; }
void EnqueueShared(EmulatedStream* stream, std::function<bool()> advance) {
  const Lock lock;
  Enqueue(stream, nullptr, nullptr, std::move(advance));
}
bool IsThere(const void* at, std::size_t bytes, const char* what) {
  return Reachable(at, bytes, what);
}
void Report(const std::string& violation) {
  const Lock lock;
  Violation(violation);
}

int Launch(dim3 grid, dim3 block, EmulatedStream* stream, std::function<void()> thread) {
  const Lock lock;
  if (IsLost()) return Lost();
  if (stream == nullptr || block.x > 1024 || grid.y > 65535 || grid.x == 0 || grid.y == 0) {
    return Result(cudaErrorInvalidValue);
  }
  ++gpu().counts.launches;
  Enqueue(stream, [grid, block, thread = std::move(thread)] {
    const std::string wrong = RunGrid(grid, block, gpu().settings.threads, thread);
    if (!wrong.empty()) Violation(wrong);
  });
  return cudaSuccess;
}

}  // namespace gradwire::emulation

using gradwire::emulation::gpu;
using namespace gradwire::emulation;  // NOLINT(google-build-using-namespace): the C interface

// ---- Errors and the device

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "cudaErrorOther";
  }
}
const char* cudaGetErrorString(cudaError_t /*error*/) { return "as the emulation was told"; }
cudaError_t cudaGetLastError() {
  const Lock lock;
  return std::exchange(gpu().last, cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int* version) {
  const Lock lock;
  *version = gpu().settings.driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  const Lock lock;
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  const Lock lock;
  *count = gpu().settings.devices;
  return *count == 0 ? Result(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  const Lock lock;
  *device = selected_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  const Lock lock;
  if (device < 0 || device >= gpu().settings.devices) return Result(cudaErrorInvalidDevice);
  selected_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const Lock lock;
  if (IsLost()) return Lost();
  if (device < 0 || device >= gpu().settings.devices) return Result(cudaErrorInvalidDevice);
  std::snprintf(properties->name, sizeof(properties->name), "emulated");
  properties->totalGlobalMem = kDeviceBytes;
  properties->multiProcessorCount = 4;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const Lock lock;
  *total = kDeviceBytes;
  *free = kDeviceBytes - std::min(kDeviceBytes, gpu().counts.live_bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Lock lock;
  Violation("cudaDeviceSynchronize waits for the whole device");
  for (const auto& stream : gpu().streams) WaitUntil(*stream, stream->enqueued, lock);
  return cudaSuccess;
}

// ---- Streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const Lock lock;
  if (IsLost()) return Lost();
  if (flags != cudaStreamNonBlocking) Violation("a stream that waits for the null stream");
  *stream = gpu().streams.emplace_back(std::make_unique<EmulatedStream>(selected_device)).get();
  return cudaSuccess;
}
// Its work still happens, as far as it can without other processes.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock;
  if (!gpu().settings.stuck) RunUntil(*stream, stream->enqueued);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Lock lock;
  return Query(*stream, stream->enqueued, stream->queries);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock;
  if (IsLost()) return Lost();
  WaitUntil(*stream, stream->enqueued, lock);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  const Lock lock;
  if (IsLost()) return Lost();
  if (event->record != nullptr) Enqueue(stream, nullptr, event->record);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  const Lock lock;
  if (IsLost()) return Lost();
  *event = gpu().events.emplace_back(std::make_unique<EmulatedEvent>()).get();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock;
  std::erase_if(gpu().events, [&](const auto& one) { return one.get() == event; });
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock;
  if (IsLost()) return Lost();
  // Nothing runs on the null stream here, so it has always come to its end.
  event->record =
      stream == nullptr ? nullptr : std::make_shared<Record>(Record{stream, stream->enqueued, 0});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock;
  if (event->record == nullptr) return cudaSuccess;
  return Query(*event->record->stream, event->record->position, event->record->queries);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock;
  if (IsLost()) return Lost();
  if (const auto record = event->record; record != nullptr) {
    WaitUntil(*record->stream, record->position, lock);
  }
  return cudaSuccess;
}

// ---- Memory

// The host's own memory is copied at the call when it is read, and waited for when it is written;
// pinned memory is read and written when the work runs.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Lock lock;
  if (IsLost()) return Lost();
  if (kind == cudaMemcpyHostToDevice && !IsPinned(from, bytes)) {
    const auto* begin = static_cast<const char*>(from);
    Enqueue(stream, [to, staged = std::vector<char>(begin, begin + bytes)] {
      if (Reachable(to, staged.size(), "a write")) std::memcpy(to, staged.data(), staged.size());
    });
    return cudaSuccess;
  }
  const bool waits = kind == cudaMemcpyDeviceToHost && !IsPinned(to, bytes);
  Enqueue(stream, [to, from, bytes, waits] {
    if (!Reachable(from, bytes, "a read") || (!waits && !Reachable(to, bytes, "a write"))) return;
    std::memmove(to, from, bytes);
  });
  if (waits) WaitUntil(*stream, stream->enqueued, lock);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  const Lock lock;
  if (IsLost()) return Lost();
  Enqueue(stream, [=] {
    if (Reachable(to, bytes, "a write")) std::memset(to, value, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned /*flags*/) {
  const Lock lock;
  if (IsLost()) return Lost();
  if (FailsNow()) return Result(cudaErrorMemoryAllocation);
  ++gpu().counts.allocations;
  std::vector<char> block(bytes);
  *memory = block.data();
  gpu().pinned.emplace(block.data(), std::move(block));
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  const Lock lock;
  gpu().pinned.erase(static_cast<const char*>(memory));
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* /*properties*/) {
  const Lock lock;
  if (IsLost()) return Lost();
  *pool = gpu().pools.emplace_back(std::make_unique<EmulatedPool>()).get();
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t /*pool*/) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t /*pool*/, cudaMemPoolAttr /*attribute*/,
                                    void* /*value*/) {
  const Lock lock;
  return IsLost() ? Lost() : cudaSuccess;
}
// What is freed may be handed out again to the same stream; here nobody gets it before the work
// that frees it has run.
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t /*pool*/,
                                    cudaStream_t stream) {
  const Lock lock;
  if (IsLost()) return Lost();
  const bool fits = bytes <= kDeviceBytes - gpu().counts.live_bytes;
  if (FailsNow() || !fits) return Result(cudaErrorMemoryAllocation);
  void* place = gpu().arena.Reserve(bytes);
  if (place == nullptr) return Result(cudaErrorMemoryAllocation);
  ++gpu().counts.allocations;
  gpu().counts.live_bytes += bytes;
  gpu().sizes[place] = bytes;
  *memory = place;
  Enqueue(stream, [place] { gpu().arena.Open(place); });
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  const Lock lock;
  if (IsLost()) return Lost();
  const auto size = gpu().sizes.find(memory);
  if (size == gpu().sizes.end()) {
    Violation("memory is freed that was not allocated");
    return Result(cudaErrorInvalidValue);
  }
  gpu().counts.live_bytes -= size->second;
  gpu().sizes.erase(size);
  Enqueue(stream, [memory] { gpu().arena.Close(memory); });
  return cudaSuccess;
}

#include "server/session/gpu_reducer.h"

#include <algorithm>
#include <utility>

#include "server/rpc/clock.h"
#include "server/session/reduced_chunk.h"

namespace gradwire::server {
namespace {

std::size_t BytesOf(const std::vector<ReduceEffect>& batch) {
  std::size_t bytes = 0;
  for (const ReduceEffect& sum : batch) bytes += sum.segment.bytes() * sum.inputs.size();
  return bytes;
}

}  // namespace

GpuReducer::GpuReducer(const std::vector<std::shared_ptr<Device>>& devices, std::size_t least_bytes,
                       std::function<void()> before_long_work, OnFailure on_failure)
    : least_bytes_(least_bytes),
      before_long_work_(std::move(before_long_work)),
      on_failure_(std::move(on_failure)),
      cpu_(CpuReducer::ThreadCount(), before_long_work_) {
  for (const std::shared_ptr<Device>& device : devices) gpus_.emplace_back(device);
}

GpuReducer::Gpu* GpuReducer::Next() {
  const std::size_t first = next_.fetch_add(1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    Gpu& gpu = gpus_[(first + i) % gpus_.size()];
    if (!gpu.failed.load(std::memory_order_relaxed)) return &gpu;
  }
  return nullptr;
}

std::size_t GpuReducer::ReduceOn(Gpu& gpu, std::vector<ReduceEffect>& batch, SessionMemory& memory,
                                 const Answer& answer) {
  for (std::size_t done = 0; done < batch.size(); ++done) {
    ReduceEffect& sum = batch[done];
    const absl::Time before = MonotonicNow();
    // The GPU is free while the session takes the answer, which may ask for another reduction.
    const auto outcome = [&] {
      const MutexLock lock(gpu.mutex);
      return ReducedChunk::ComputeOn(gpu.reduction, sum, memory);
    }();
    if (!outcome.ok()) {
      if (!gpu.failed.exchange(true)) on_failure_(outcome.status());
      return done;
    }
    sum.inputs.clear();
    answer({{.id = sum.id,
             .chunk = sum.chunk,
             .result = outcome->chunk,
             .outcome = std::move(outcome->reduced),
             .spent = MonotonicNow() - before}});
  }
  return batch.size();
}

void GpuReducer::Reduce(std::vector<ReduceEffect> batch, std::shared_ptr<SessionMemory> memory,
                        Answer answer) {
  Gpu* const gpu = BytesOf(batch) < least_bytes_ ? nullptr : Next();
  if (gpu != nullptr) {
    before_long_work_();
    const std::size_t done = ReduceOn(*gpu, batch, *memory, answer);
    batch.erase(batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(done));
  }
  if (!batch.empty()) cpu_.Reduce(std::move(batch), std::move(memory), std::move(answer));
}

}  // namespace gradwire::server

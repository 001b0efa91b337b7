// Reduces on this host's GPUs, with the bits of CpuReducer.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/sync.h"
#include "hooks/device_reduce.h"
#include "server/session/cpu_reducer.h"

namespace gradwire::server {

// Thread-safe. Answers before Reduce returns, on the caller's thread. Batches take the GPUs in
// turn, and one sum at a time has a GPU. Small batches are summed on the processor, which is
// sooner done. A GPU that fails is not used again: what it was given, and all later batches if it
// was the last, are summed on the processor.
class GpuReducer final : public Reducer {
 public:
  // Called once for each GPU that fails, with what happened.
  using OnFailure = std::function<void(const absl::Status& status)>;

  // `devices`: one or more. `least_bytes`: of a batch's contributions, for a GPU.
  // `before_long_work` as in CpuReducer.
  GpuReducer(const std::vector<std::shared_ptr<Device>>& devices, std::size_t least_bytes,
             std::function<void()> before_long_work, OnFailure on_failure);

  void Reduce(std::vector<ReduceEffect> batch, std::shared_ptr<SessionMemory> memory,
              Answer answer) override;

 private:
  struct Gpu {
    explicit Gpu(std::shared_ptr<Device> device) : reduction(std::move(device)) {}
    Mutex mutex;
    DeviceReduction reduction GRADWIRE_GUARDED_BY(mutex);
    std::atomic<bool> failed = false;
  };

  // Null: none is left.
  Gpu* Next();
  // How many of the batch's first reductions are done; the GPU has failed if not all are.
  std::size_t ReduceOn(Gpu& gpu, std::vector<ReduceEffect>& batch, SessionMemory& memory,
                       const Answer& answer);

  const std::size_t least_bytes_;
  const std::function<void()> before_long_work_;
  const OnFailure on_failure_;
  CpuReducer cpu_;
  std::deque<Gpu> gpus_;
  std::atomic<std::size_t> next_ = 0;
};

}  // namespace gradwire::server

// Reduces on this host's processors.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "hooks/kernels.h"
#include "server/session/reducer.h"
#include "server/session/sum_threads.h"

namespace gradwire::server {

// Answers before Reduce returns, on the caller's thread; of a batch, others compute a part.
class CpuReducer final : public Reducer {
 public:
  // Beside the caller's. More than a few are not needed: memory is not that fast.
  static std::size_t ThreadCount();

  // `before_long_work` is called on a thread that is about to compute for long.
  // `kernels` are of the host's memory and outlive the reducer.
  CpuReducer(const Kernels& kernels, std::size_t threads, std::function<void()> before_long_work)
      : kernels_(kernels), threads_(threads), before_long_work_(std::move(before_long_work)) {}

  void Reduce(std::vector<ReduceEffect> batch, std::shared_ptr<SessionMemory> memory,
              Answer answer) override;

 private:
  std::vector<Done> Compute(std::span<ReduceEffect> reductions, SessionMemory& memory);

  const Kernels& kernels_;
  SumThreads threads_;
  const std::function<void()> before_long_work_;
};

}  // namespace gradwire::server

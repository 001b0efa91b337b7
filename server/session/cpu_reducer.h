// Reduces on this host's processors.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/session/reducer.h"
#include "server/session/sum_threads.h"

namespace gradwire::server {

// Thread-safe. Answers before Reduce returns, on the caller's thread. If a batch has several sums,
// the sum threads compute a part of them.
class CpuReducer final : public Reducer {
 public:
  // In addition to the caller's thread. A few threads saturate the memory bandwidth.
  static std::size_t ThreadCount();

  // Calls `before_long_work` on a thread that is about to compute for a long time.
  CpuReducer(std::size_t threads, std::function<void()> before_long_work)
      : threads_(threads), before_long_work_(std::move(before_long_work)) {}

  void Reduce(std::vector<ReduceEffect> batch, std::shared_ptr<SessionMemory> memory,
              Answer answer) override;

 private:
  std::vector<Done> Compute(std::span<ReduceEffect> reductions, SessionMemory& memory);

  SumThreads threads_;
  const std::function<void()> before_long_work_;
};

}  // namespace gradwire::server

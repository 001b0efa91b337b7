// Threads that help to compute sums.
#pragma once

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/sync.h"

namespace gradwire::server {

// Thread-safe.
class SumThreads {
 public:
  using Task = absl::FunctionRef<void(std::size_t)>;

  // Starts with the first Run that has use for them.
  explicit SumThreads(std::size_t threads) : most_(threads) {}
  // No Run is under way.
  ~SumThreads();

  SumThreads(const SumThreads&) = delete;
  SumThreads& operator=(const SumThreads&) = delete;

  // Calls task(0) to task(count - 1), each once, on these threads and on the caller's; returns when
  // all have returned. They must not wait for anything.
  void Run(std::size_t count, Task task) GRADWIRE_EXCLUDES(mutex_);

 private:
  struct Job {
    Task task;
    std::size_t count = 0;
    std::size_t next = 0;
    std::size_t done = 0;
  };

  void StartThreads() GRADWIRE_REQUIRES(mutex_);
  void Help() GRADWIRE_EXCLUDES(mutex_);
  // One task of the job. The lock is given back meanwhile.
  void Take(Job& job) GRADWIRE_REQUIRES(mutex_);

  const std::size_t most_;
  Mutex mutex_;
  CondVar work_;
  CondVar done_;
  std::deque<Job*> jobs_ GRADWIRE_GUARDED_BY(mutex_);  // with tasks that nobody has taken
  bool stopping_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::server

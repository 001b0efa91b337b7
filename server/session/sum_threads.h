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

  // The first Run that needs threads starts them.
  explicit SumThreads(std::size_t threads) : most_(threads) {}
  // No Run may be in progress.
  ~SumThreads();

  SumThreads(const SumThreads&) = delete;
  SumThreads& operator=(const SumThreads&) = delete;

  // Calls task(0) to task(count - 1) once each, on these threads and the caller's, and returns when
  // all have returned. Tasks must not wait for anything.
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
  // Runs one task of the job, without the lock.
  void Take(Job& job) GRADWIRE_REQUIRES(mutex_);

  const std::size_t most_;
  Mutex mutex_;
  CondVar work_;
  CondVar done_;
  std::deque<Job*> jobs_ GRADWIRE_GUARDED_BY(mutex_);  // jobs with tasks that no thread has taken
  bool stopping_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::server

// Threads for work that takes long and that no event of a session may wait for.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "base/sync.h"

namespace gradwire::server {

// Thread-safe. Of one owner (a session) one task runs at a time, in the order in which they were
// posted; owners take turns. So one that has much to do keeps others waiting for one task at most.
class WorkThreads {
 public:
  using Task = std::function<void()>;

  static std::size_t ThreadCount();

  // They start with the first task. At least one.
  explicit WorkThreads(std::size_t threads) : most_(threads) {}
  ~WorkThreads() { Stop(); }

  WorkThreads(const WorkThreads&) = delete;
  WorkThreads& operator=(const WorkThreads&) = delete;

  // Runs it later on another thread; where the system gives none, now and here. The caller holds no
  // lock that the task takes. `owner` only tells owners apart.
  void Post(const void* owner, Task task) GRADWIRE_EXCLUDES(mutex_);

  // Returns when the tasks under way have ended. Those that wait are dropped, as are all that come
  // later. Not from a task.
  void Stop() GRADWIRE_EXCLUDES(mutex_);

 private:
  // What waits, without the task under way.
  using Waiting = std::deque<Task>;

  void StartThreads() GRADWIRE_REQUIRES(mutex_);
  void Work() GRADWIRE_EXCLUDES(mutex_);
  // Of the owner whose turn it is. The lock is given back meanwhile.
  void RunNext() GRADWIRE_REQUIRES(mutex_);

  const std::size_t most_;
  Mutex mutex_;
  CondVar changed_;
  std::map<const void*, Waiting> owners_ GRADWIRE_GUARDED_BY(mutex_);  // with tasks, or at work
  std::deque<const void*> turns_ GRADWIRE_GUARDED_BY(mutex_);  // owners with tasks, not at work
  bool stopping_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::server

// Threads for work that takes long and that no event of a session may wait for.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
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
  void Post(const void* owner, Task task);

  // Returns when the tasks under way have ended, except the caller's own if it is one. Those that
  // wait are dropped, as are all that come later.
  void Stop();

 private:
  // What waits, without the task under way.
  using Waiting = std::deque<Task>;

  // Each thread owns a share of it: a task may hold the last reference to these threads' owner, and
  // its thread then outlives this object.
  struct Queue {
    void Work() GRADWIRE_EXCLUDES(mutex);
    // Of the owner whose turn it is. The lock is given back meanwhile.
    void RunNext() GRADWIRE_REQUIRES(mutex);

    Mutex mutex;
    CondVar changed;
    std::map<const void*, Waiting> owners GRADWIRE_GUARDED_BY(mutex);  // with tasks, or at work
    std::deque<const void*> turns GRADWIRE_GUARDED_BY(mutex);  // owners with tasks, not at work
    bool stopping GRADWIRE_GUARDED_BY(mutex) = false;
    std::vector<std::thread> threads GRADWIRE_GUARDED_BY(mutex);
  };

  static void StartThreads(const std::shared_ptr<Queue>& queue, std::size_t most)
      GRADWIRE_REQUIRES(queue->mutex);

  const std::size_t most_;
  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

}  // namespace gradwire::server

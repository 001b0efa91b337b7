#include "server/session/work_threads.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/thread_name.h"

namespace gradwire::server {

// At least two, so that one session's first draw does not delay another's.
std::size_t WorkThreads::ThreadCount() {
  constexpr unsigned kFewest = 2;
  constexpr unsigned kMost = 4;
  return std::clamp(std::thread::hardware_concurrency(), kFewest, kMost);
}

void WorkThreads::StartThreads(const std::shared_ptr<Queue>& queue, std::size_t most) {
  try {
    while (queue->threads.size() < most) {
      queue->threads.emplace_back([queue] {
        NameThread("gradwire-work");
        queue->Work();
      });
    }
  } catch (const std::system_error&) {
    return;
  }
}

// An owner has a turn in `turns` only while none of its tasks runs. Without any thread, the caller
// runs the tasks.
void WorkThreads::Post(const void* owner, Task task) {
  const std::shared_ptr<Queue> queue = queue_;
  MutexLock lock(queue->mutex);
  if (queue->stopping) return;
  StartThreads(queue, most_);
  const auto [found, is_new] = queue->owners.try_emplace(owner);
  found->second.push_back(std::move(task));
  if (is_new) queue->turns.push_back(owner);
  if (queue->threads.empty()) {
    while (!queue->turns.empty()) queue->RunNext();
  } else {
    queue->changed.NotifyAll();
  }
}

// The owner's entry stays in `owners` while its task runs, so Post adds no second turn and one
// session never occupies two threads. References into a std::map survive insertions, but Stop may
// empty the map, when it is called by the task itself.
void WorkThreads::Queue::RunNext() {
  const void* const owner = turns.front();
  turns.pop_front();
  Waiting& waiting = owners.at(owner);
  Task task = std::move(waiting.front());
  waiting.pop_front();
  mutex.Unlock();
  task();
  task = nullptr;  // destroyed without the lock, because that may take long
  mutex.Lock();
  if (stopping) return;
  if (waiting.empty()) {
    owners.erase(owner);
  } else {
    turns.push_back(owner);
  }
}

void WorkThreads::Queue::Work() {
  MutexLock lock(mutex);
  while (!stopping) {
    if (turns.empty()) {
      changed.Wait(mutex);
    } else {
      RunNext();
    }
  }
}

void WorkThreads::Stop() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(queue_->mutex);
    queue_->stopping = true;
    threads = std::move(queue_->threads);
  }
  queue_->changed.NotifyAll();
  for (std::thread& thread : threads) {
    // A thread cannot wait for itself: it returns to Work, finds `stopping`, and ends.
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
  std::map<const void*, Waiting> dropped;  // destroyed without the lock
  MutexLock lock(queue_->mutex);
  dropped = std::move(queue_->owners);
  queue_->owners.clear();
  queue_->turns.clear();
}

}  // namespace gradwire::server

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

void WorkThreads::StartThreads() {
  try {
    while (threads_.size() < most_) {
      threads_.emplace_back([this] {
        NameThread("gradwire-work");
        Work();
      });
    }
  } catch (const std::system_error&) {
    return;
  }
}

// An owner has a turn in `turns_` only while none of its tasks runs. Without any thread, the caller
// runs the tasks.
void WorkThreads::Post(const void* owner, Task task) {
  MutexLock lock(mutex_);
  if (stopping_) return;
  StartThreads();
  const auto [found, is_new] = owners_.try_emplace(owner);
  found->second.push_back(std::move(task));
  if (is_new) turns_.push_back(owner);
  if (threads_.empty()) {
    while (!turns_.empty()) RunNext();
  } else {
    changed_.NotifyAll();
  }
}

// The owner's entry stays in `owners_` while its task runs, so Post adds no second turn and one
// session never occupies two threads. References into a std::map survive insertions.
void WorkThreads::RunNext() {
  const void* const owner = turns_.front();
  turns_.pop_front();
  Waiting& waiting = owners_.at(owner);
  Task task = std::move(waiting.front());
  waiting.pop_front();
  mutex_.Unlock();
  task();
  task = nullptr;  // destroyed without the lock, because that may take long
  mutex_.Lock();
  if (waiting.empty() || stopping_) {
    owners_.erase(owner);
  } else {
    turns_.push_back(owner);
  }
}

void WorkThreads::Work() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (turns_.empty()) {
      changed_.Wait(mutex_);
    } else {
      RunNext();
    }
  }
}

void WorkThreads::Stop() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    threads = std::move(threads_);
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
  std::map<const void*, Waiting> dropped;  // destroyed without the lock
  MutexLock lock(mutex_);
  dropped = std::move(owners_);
  owners_.clear();
  turns_.clear();
}

}  // namespace gradwire::server

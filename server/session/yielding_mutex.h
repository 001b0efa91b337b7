// A lock for what may be held while others have work that does not need it.
#pragma once

#include <functional>
#include <utility>

#include "base/sync.h"

namespace gradwire::server {

// A Mutex whose waiters first say that they wait, so that another thread polls for events and calls
// that have nothing to do with the lock are answered meanwhile. Use with MutexLock.
class GRADWIRE_CAPABILITY("mutex") YieldingMutex {
 public:
  explicit YieldingMutex(std::function<void()> before_wait)
      : before_wait_(std::move(before_wait)) {}
  YieldingMutex(const YieldingMutex&) = delete;
  YieldingMutex& operator=(const YieldingMutex&) = delete;

  void Lock() GRADWIRE_ACQUIRE() GRADWIRE_NO_THREAD_SAFETY_ANALYSIS {
    if (mutex_.TryLock()) return;
    before_wait_();
    mutex_.Lock();
  }
  void Unlock() GRADWIRE_RELEASE() GRADWIRE_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }

 private:
  const std::function<void()> before_wait_;
  Mutex mutex_;
};

}  // namespace gradwire::server

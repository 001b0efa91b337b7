// A mutex for RPC threads: a thread that must wait for it first yields leadership.
#pragma once

#include <functional>
#include <utility>

#include "base/sync.h"

namespace gradwire::server {

// A Mutex that calls `before_wait` before a thread blocks on it, so that another thread can poll
// for events and serve calls that do not need this lock. Use it with MutexLock.
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

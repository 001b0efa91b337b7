// A mutex for RPC threads: a thread that must wait for it first yields leadership.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <utility>

#include "base/sync.h"

namespace gradwire::server {

// A Mutex that calls `before_wait` before a thread blocks on it, so that another thread can poll
// for events and serve calls that do not need this lock. It records the
// longest time that it was held. Use it with MutexLock.
class GRADWIRE_CAPABILITY("mutex") YieldingMutex {
 public:
  explicit YieldingMutex(std::function<void()> before_wait)
      : before_wait_(std::move(before_wait)) {}
  YieldingMutex(const YieldingMutex&) = delete;
  YieldingMutex& operator=(const YieldingMutex&) = delete;

  void Lock() GRADWIRE_ACQUIRE() GRADWIRE_NO_THREAD_SAFETY_ANALYSIS {
    if (!mutex_.TryLock()) {
      before_wait_();
      mutex_.Lock();
    }
    locked_ = Clock::now();
  }
  void Unlock() GRADWIRE_RELEASE() GRADWIRE_NO_THREAD_SAFETY_ANALYSIS {
    const Clock::duration held = Clock::now() - locked_;
    if (held > longest_hold_.load(std::memory_order_relaxed)) {
      longest_hold_.store(held, std::memory_order_relaxed);  // nobody else writes it now
    }
    mutex_.Unlock();
  }

  // Of those that are over, in time that passed, with whatever kept the holder from running.
  std::chrono::nanoseconds longest_hold() const {
    return longest_hold_.load(std::memory_order_relaxed);
  }

 private:
  using Clock = std::chrono::steady_clock;

  const std::function<void()> before_wait_;
  Mutex mutex_;
  Clock::time_point locked_;  // the holder's
  std::atomic<Clock::duration> longest_hold_ = Clock::duration::zero();
};

}  // namespace gradwire::server

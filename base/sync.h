// std::mutex with clang's thread-safety annotations. (Debian's absl::Mutex has them too, but
// ThreadSanitizer does not see its locking and reports races that are none.)
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define GRADWIRE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define GRADWIRE_THREAD_ANNOTATION(x)
#endif

#define GRADWIRE_CAPABILITY(x) GRADWIRE_THREAD_ANNOTATION(capability(x))
#define GRADWIRE_SCOPED_CAPABILITY GRADWIRE_THREAD_ANNOTATION(scoped_lockable)
#define GRADWIRE_GUARDED_BY(x) GRADWIRE_THREAD_ANNOTATION(guarded_by(x))
#define GRADWIRE_PT_GUARDED_BY(x) GRADWIRE_THREAD_ANNOTATION(pt_guarded_by(x))
#define GRADWIRE_REQUIRES(...) GRADWIRE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define GRADWIRE_EXCLUDES(...) GRADWIRE_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define GRADWIRE_ACQUIRE(...) GRADWIRE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define GRADWIRE_TRY_ACQUIRE(...) GRADWIRE_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define GRADWIRE_RELEASE(...) GRADWIRE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define GRADWIRE_NO_THREAD_SAFETY_ANALYSIS GRADWIRE_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace gradwire {

class GRADWIRE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() GRADWIRE_ACQUIRE() { mutex_.lock(); }
  bool TryLock() GRADWIRE_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void Unlock() GRADWIRE_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Of a Mutex, or of anything else with Lock and Unlock.
template <class Lockable>
class GRADWIRE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Lockable& mutex) GRADWIRE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() GRADWIRE_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Lockable& mutex_;
};

// Waits may end early: callers loop over their condition.
class CondVar {
 public:
  void Wait(Mutex& mutex) GRADWIRE_REQUIRES(mutex) GRADWIRE_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // False: the deadline passed.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      GRADWIRE_REQUIRES(mutex) GRADWIRE_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool signalled = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return signalled;
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace gradwire

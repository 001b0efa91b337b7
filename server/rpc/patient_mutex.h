// A lock for what may be held while others have work that does not need it.
#pragma once

#include "proto/wire/sync.h"
#include "server/rpc/rpc_threads.h"

namespace gradwire::server {

// A Mutex whose waiters first let another thread read (RpcThreads::HandOver), so that calls that
// have nothing to do with it are answered meanwhile. Use with MutexLock.
class GRADWIRE_CAPABILITY("mutex") PatientMutex {
 public:
  PatientMutex() = default;
  PatientMutex(const PatientMutex&) = delete;
  PatientMutex& operator=(const PatientMutex&) = delete;

  void Lock() GRADWIRE_ACQUIRE() GRADWIRE_NO_THREAD_SAFETY_ANALYSIS {
    if (mutex_.TryLock()) return;
    RpcThreads::HandOver();
    mutex_.Lock();
  }
  void Unlock() GRADWIRE_RELEASE() GRADWIRE_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }

 private:
  Mutex mutex_;
};

}  // namespace gradwire::server

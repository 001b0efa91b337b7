#include "proto/wire/keep_grpc.h"

#include <grpc/grpc.h>

#include "absl/synchronization/mutex.h"

namespace gradwire::wire {

void KeepGrpc() {
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  static_cast<void>(kept);
}

void SkipDeadlockDetection() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace gradwire::wire

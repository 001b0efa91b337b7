#include "proto/wire/process_setup.h"

#include <grpc/grpc.h>

#include <cstdlib>

#include "absl/synchronization/mutex.h"

namespace gradwire::wire {

void KeepGrpc() {
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  static_cast<void>(kept);
}

void KeepFreedMemory() {
  // glibc: freeing a block that was mapped raises M_MMAP_THRESHOLD to its size and M_TRIM_THRESHOLD
  // to twice that, unless one of them was set.
  static const bool kept = [] {
    constexpr std::size_t kBlock = std::size_t{8} << 20;
    void* volatile block = std::malloc(kBlock);  // volatile: the pair would be optimised away
    std::free(block);
    return true;
  }();
  static_cast<void>(kept);
}

void SkipDeadlockDetection() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

void SilenceGrpc() {
  constexpr int kKeepWhatIsSet = 0;
  setenv("GRPC_VERBOSITY", "NONE", kKeepWhatIsSet);
}

}  // namespace gradwire::wire

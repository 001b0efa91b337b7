// NCCL's C interface, as far as Gradwire uses it, in a library that is opened at run time: one
// binary serves machines with NCCL and without. The declarations are those of nccl.h, whose binary
// interface NCCL keeps for all 2.x.
#pragma once

#include <climits>
#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace gradwire::client::nccl {

inline constexpr std::size_t kIdBytes = 128;

// Other values are errors, too.
enum class Result : int {
  kSuccess = 0,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

constexpr bool Failed(Result result) {
  return result != Result::kSuccess && result != Result::kInProgress;
}

inline constexpr int kInt8 = 0;  // of ncclDataType_t

struct Comm;
using Stream = void*;  // cudaStream_t

struct UniqueId {
  char bytes[kIdBytes];
};

// ncclConfig_t of NCCL 2.14, the first that has it. A later library copies the `size` bytes that
// are here and takes its defaults for what came after `version`.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
  // Padding in 2.14, and cgaClusterSize since 2.17, where this value stands for the default.
  int undefined = INT_MIN;
};
static_assert(sizeof(Config) == 24 && offsetof(Config, blocking) == 16);

struct Library {
  int version = 0;           // NCCL's number: 23004 for 2.30.4
  std::string name() const;  // "NCCL 2.30.4"

  const char* (*get_error_string)(Result result) = nullptr;
  const char* (*get_last_error)(const Comm* comm) = nullptr;  // null: the library has none
  Result (*get_unique_id)(UniqueId* id) = nullptr;
  Result (*comm_init_rank_config)(Comm** comm, int size, UniqueId id, int rank,
                                  Config* config) = nullptr;
  Result (*comm_get_async_error)(Comm* comm, Result* error) = nullptr;
  Result (*comm_abort)(Comm* comm) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*send)(const void* from, std::size_t count, int type, int peer, Comm* comm,
                 Stream stream) = nullptr;
  Result (*recv)(void* to, std::size_t count, int type, int peer, Comm* comm,
                 Stream stream) = nullptr;
  Result (*broadcast)(const void* from, void* to, std::size_t count, int type, int root, Comm* comm,
                      Stream stream) = nullptr;
};

// Empty path: libnccl.so.2, which is the one that the process has loaded already, if any, or the
// one that the dynamic loader finds. The library stays loaded until the process ends.
// FailedPrecondition: it cannot be loaded, is older than 2.14, or lacks a function.
absl::StatusOr<Library> Open(const std::string& path);

}  // namespace gradwire::client::nccl

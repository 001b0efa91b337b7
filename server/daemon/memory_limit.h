// How much memory this process may use.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace gradwire::server {

// The smallest of the machine's memory and the limits of the control groups that this process is
// in.
std::size_t AvailableMemory();

// "64MiB", "2GB", "1048576" (bytes) or "80%", which is a part of `available`.
absl::StatusOr<std::size_t> ParseMemoryLimit(const std::string& text, std::size_t available);

// The two parts of the limit.
struct MemoryShares {
  std::size_t sessions = 0;   // what sessions may reserve
  std::size_t transport = 0;  // what gRPC may hold beside it: incomplete messages, read buffers

  std::size_t total() const { return sessions + transport; }
};
MemoryShares ShareMemory(std::size_t limit);

}  // namespace gradwire::server

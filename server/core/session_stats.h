// What a session counts.
#pragma once

#include <cstdint>

namespace gradwire::server {

struct SessionStats {
  std::uint64_t contribution_bytes = 0;  // payload of accepted chunks
  std::uint64_t result_bytes = 0;        // payload sent, over all members
  std::uint64_t duplicate_chunks = 0;
  std::uint64_t steps_applied = 0;
  std::uint64_t steps_skipped = 0;
};

}  // namespace gradwire::server

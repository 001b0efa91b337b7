// Divides the process's descriptors and mappings among its uses.
#pragma once

#include <cstddef>

namespace gradwire::server {

struct SystemLimits {
  std::size_t descriptors = 0;  // RLIMIT_NOFILE, the soft one
  std::size_t mappings = 0;     // vm.max_map_count
};
SystemLimits ReadSystemLimits();

// The shares, as counts. Together they stay within the limits, whatever members do, unless the
// limits are too low for the daemon to work at all.
struct SystemShares {
  int connections = 0;
  std::size_t pending_offers = 0;   // of shared memory
  std::size_t shared_sessions = 0;  // that share memory with members
  std::size_t segments = 0;         // of members' memory, mapped
};
SystemShares ShareOut(const SystemLimits& limits, int max_connections, int max_sessions);

// With so many, nothing is cut down for lack of descriptors.
std::size_t DescriptorsWanted(int max_connections, int max_sessions);

}  // namespace gradwire::server

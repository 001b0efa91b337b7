// What the demo asks its daemon.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace demo {

// Waits for the daemon for at most `timeout_ms` and returns its version.
absl::StatusOr<std::string> ServerVersion(const std::string& address, int timeout_ms);

// What the daemon counted in a session.
struct SessionCounters {
  std::uint64_t steps_applied = 0;
  std::uint64_t wire_bytes = 0;      // gradients received from all members, in all steps
  std::uint64_t gradient_bytes = 0;  // of one member in one step, uncompressed
};
absl::StatusOr<SessionCounters> Counters(const std::string& address, const std::string& session);

}  // namespace demo

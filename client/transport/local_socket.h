// The unix socket of the daemon on this host.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace gradwire::client {

// What a daemon's answer to a join says of its unix socket. An empty path: it has none.
struct LocalSocket {
  std::string path = {};
  std::string key = {};

  std::string address() const;  // "unix:/path"
};

// Connects at once, or fails. `address`: "unix:/path".
absl::StatusOr<UniqueFd> ConnectToUnixSocket(const std::string& address);

// OK if the daemon that answered the join with `socket` also answers there: see
// proto/wire/local_proof.h. Otherwise the reason: no such socket in this container or on this host,
// another daemon's, or no answer until the deadline.
absl::Status CheckIsSameDaemon(const LocalSocket& socket, std::uint64_t start_id,
                               std::chrono::steady_clock::time_point deadline);

}  // namespace gradwire::client

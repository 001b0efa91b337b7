// The SDK's client of a session with several daemons.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/client.h"

namespace gradwire::client {

// Joins all daemons as one member, in this order: the first leads the session. `options` are valid
// and complete; their address is not looked at. An error names the daemon, and leaves none with a
// member.
absl::StatusOr<std::unique_ptr<Client>> JoinShards(ClientOptions options,
                                                   std::vector<std::string> addresses);

}  // namespace gradwire::client

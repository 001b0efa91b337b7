// The SDK's client of a session with several daemons.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/client.h"

namespace gradwire::client {

// Whether a session with this hook, whose gradients lie on this device, can have so many daemons.
// InvalidArgument says why not.
absl::Status CheckShards(const HookSpec& hook, DeviceId device, std::uint32_t shards);

// Joins all daemons as one member, in this order: the first leads the session. `options` are valid
// and complete; their address is not looked at. An error names the daemon, and leaves none with a
// member.
absl::StatusOr<std::unique_ptr<Client>> JoinShards(ClientOptions options,
                                                   std::vector<std::string> addresses);

}  // namespace gradwire::client

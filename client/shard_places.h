// Joins the daemons of a session with several.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/addresses.h"
#include "client/member_client.h"
#include "gradwire/client.h"

namespace gradwire::client {

// Whether a session with this hook, whose gradients lie on this device, can have so many daemons.
// InvalidArgument says why not.
absl::Status CheckShards(const HookSpec& hook, DeviceId device, std::uint32_t shards);

// Joins all daemons, two or more, as one member, in this order: the first leads the session.
// `options` are valid and complete; their address is not looked at. An error names the daemon, and
// leaves none with a member. Start follows.
absl::StatusOr<std::unique_ptr<MemberClient>> PlaceAtShards(ClientOptions options,
                                                            const Daemons& daemons,
                                                            const Leaf& leaf);

}  // namespace gradwire::client

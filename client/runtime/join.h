// Parts of Client::Join.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/addresses.h"
#include "client/member_client.h"
#include "client/runtime/member_hook.h"
#include "gradwire/client.h"

namespace gradwire::client {

// Client::Join, with a resolver of the caller's.
absl::StatusOr<std::unique_ptr<Client>> JoinThrough(const ClientOptions& options, const Dns& dns);

// Joins one daemon with this hook and these communicators. `options` are valid and complete.
absl::StatusOr<std::unique_ptr<Client>> JoinWith(ClientOptions options, MemberHook hook);

// The same until the daemon has answered. `daemons`: what the options' address was resolved from.
absl::StatusOr<std::unique_ptr<MemberClient>> PlaceAt(ClientOptions options, MemberHook hook,
                                                      const Daemons& daemons, const Leaf& leaf);

// Identifies this attempt: a repeated join with the same id gets the same token, while a new
// process that takes over the rank has another id.
std::uint64_t DrawStartId();

// What a member says that waits long for the others.
std::string WaitsForMembers(int rank, const ClientOptions& options);

}  // namespace gradwire::client

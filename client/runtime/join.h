// The second half of Client::Join.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/runtime/member_hook.h"
#include "gradwire/client.h"

namespace gradwire::client {

// Joins with this hook and these communicators. `options` are valid and complete.
absl::StatusOr<std::unique_ptr<Client>> JoinWith(ClientOptions options, MemberHook hook);

}  // namespace gradwire::client

// What a JoinRequest asks for, checked.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "gradwire/v1/aggregation.pb.h"
#include "server/access/caller.h"
#include "server/core/session_options.h"
#include "server/daemon/options.h"

namespace gradwire::server {

constexpr std::uint32_t kProtocolVersion = 1;

// `manifest` is the request's, read. An error names the field, its value and what is allowed.
absl::StatusOr<JoinAsk> AskOf(const v1::JoinRequest& request, Manifest manifest);

// The session that such a member begins at a daemon with these options.
absl::StatusOr<SessionOptions> SessionOf(const ServerOptions& options,
                                         const v1::JoinRequest& request, const JoinAsk& ask,
                                         const Caller& caller);

}  // namespace gradwire::server

// What a leaf daemon makes of a join: its part of the session, whose whole is at the root.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/core/session_options.h"

namespace gradwire::server {

// `upstream` is the root's address. `session` is what the join asks for, of a daemon that is no
// leaf. InvalidArgument: the member does not say which ranks are on its node, or its hook runs in
// trainers only.
absl::Status MakeLeaf(const JoinAsk& ask, const std::string& upstream, SessionOptions& session);

}  // namespace gradwire::server

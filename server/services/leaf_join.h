// What a leaf daemon makes of a join: its part of the session, whose whole is at the root.
#pragma once

#include "absl/status/status.h"
#include "server/core/session_options.h"

namespace gradwire::server {

// `session` is what the join asks for, of a daemon that is no leaf. InvalidArgument: the member
// does not say which ranks are on its node, or its hook runs in trainers only.
absl::Status MakeLeaf(const JoinAsk& ask, SessionOptions& session);

}  // namespace gradwire::server

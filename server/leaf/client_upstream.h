// A leaf's way to the root's session: the SDK's client, as one member of it.
#pragma once

#include <functional>
#include <memory>

#include "server/core/session_options.h"
#include "server/daemon/options.h"
#include "server/session/upstream.h"

namespace gradwire::server {

// Of the daemon's sessions, each with a client and a thread of its own.
std::function<std::unique_ptr<Upstream>(const SessionOptions& session)> ClientUpstreams(
    const ServerOptions& options);

}  // namespace gradwire::server

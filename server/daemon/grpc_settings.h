// How the daemon has gRPC set up.
#pragma once

#include <grpcpp/server_builder.h>

#include <cstddef>

#include "server/daemon/options.h"

namespace gradwire::server {

// Message sizes, timeouts and buffers of every connection, and a bound on what gRPC may hold beside
// the `session_bytes` that the sessions' reservations allow.
void SetUpGrpc(const ServerOptions& options, std::size_t session_bytes,
               grpc::ServerBuilder& builder);

}  // namespace gradwire::server

// How the daemon has gRPC set up.
#pragma once

#include <grpcpp/server_builder.h>

#include "server/daemon/memory_limit.h"
#include "server/daemon/options.h"
#include "server/net/intake.h"

namespace gradwire::server {

// Message sizes, timeouts and buffers of every connection, and a bound on what gRPC may hold: the
// sessions' payloads are gRPC's slices too.
void SetUpGrpc(const ServerOptions& options, const MemoryShares& memory,
               grpc::ServerBuilder& builder);

// What these settings let a well-behaved peer send ahead, and the strangers' part of the memory.
IntakeLimits IntakeLimitsOf(const ServerOptions& options, const MemoryShares& memory);

// What strangers on the admin addresses may hold beside those on the members': their connections
// are few, and few of them send much.
std::size_t AdminStrangersBytes(std::size_t strangers_bytes);

}  // namespace gradwire::server

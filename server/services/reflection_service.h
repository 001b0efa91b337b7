// Implements grpc.reflection.v1.ServerReflection and v1alpha, which most tools use.
#pragma once

#include "server/rpc/methods.h"

namespace gradwire::server {

// Call it after all other services: clients see the methods that are in `methods` now.
void AddReflection(Methods& methods);

}  // namespace gradwire::server

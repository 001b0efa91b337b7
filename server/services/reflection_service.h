// grpc.reflection.v1.ServerReflection and its v1alpha, which most tools ask for: what can be
// called.
#pragma once

#include "server/rpc/methods.h"

namespace gradwire::server {

// After all the others: what is in `methods` now is what clients are told of.
void AddReflection(Methods& methods);

}  // namespace gradwire::server

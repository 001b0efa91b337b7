// The one place where absl::Status meets grpc::Status. The codes have the same numbers.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace gradwire::wire {

grpc::Status ToGrpc(const absl::Status& status);

// A code that gRPC does not define becomes Unknown. Of a failed connection the message begins with
// the address.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace gradwire::wire

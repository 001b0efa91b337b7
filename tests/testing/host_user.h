// Other users of this host, for tests that run as root.
#pragma once

#include <grpcpp/channel.h>
#include <sys/types.h>

#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace gradwire::testing {

// A connection to the unix socket `path` that `user` has opened, in a child process. Invalid if the
// user may not. Needs root.
UniqueFd ConnectAs(uid_t user, const std::string& path);

// gRPC over such a connection.
std::shared_ptr<grpc::Channel> ChannelOf(uid_t user, const std::string& path);

}  // namespace gradwire::testing

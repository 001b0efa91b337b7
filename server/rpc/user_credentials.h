// Marks calls that come over unix sockets with the user who makes them.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>

#include "server/net/local_users.h"

namespace gradwire::server {

// For the connections of one slot. They need no other credentials on the client's side: nothing is
// encrypted, and nothing is exchanged. A connection keeps the user of its first call.
std::shared_ptr<grpc::ServerCredentials> MakeUserCredentials(LocalUsers::SlotUser user);

// Of a call's connection; nullopt: it is none with these credentials. A peer cannot forge it.
std::optional<uid_t> UserOf(const grpc::AuthContext& context);

}  // namespace gradwire::server

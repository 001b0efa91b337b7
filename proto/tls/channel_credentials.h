// What a client of a daemon encrypts its connection with.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/error_code.h"
#include "proto/tls/pem.h"

namespace gradwire::tls {

bool IsUnixSocket(const std::string& address);

// InvalidArgument for a certificate without its key or the reverse, or either without `files.ca`.
// At a unix socket nothing counts: the files may be those of a daemon in the same environment.
absl::Status CheckClientFiles(const std::string& address, const Files& files);

// TLS if `files.ca` is named and the address is no unix socket, which needs none: an authority in
// `files.ca` must have signed the daemon's certificate, and it must be for the host in the address.
// Otherwise a connection that is not encrypted. Errors: Read's and CheckClientFiles'.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(
    const std::string& address, const Files& files);

// The daemon's certificate must be for this host, and not for the one in the channel's address:
// several daemons of one name are reached by IP addresses. Nothing for "".
void ExpectHost(const std::string& host, grpc::ChannelArguments& arguments);

// What to do about `why`, an error of gRPC's transport, if TLS may explain it; else "".
// `encrypted`: whether this side used TLS.
std::string Hint(const std::string& why, bool encrypted);
// The code of such an error.
ErrorCode UnreachableCode(const std::string& why, bool encrypted);

}  // namespace gradwire::tls

// The token with which a client shows a daemon what it may do.
#pragma once

#include <grpcpp/client_context.h>

#include <string>

#include "absl/status/statusor.h"

namespace gradwire::tls {

// Where a client has its token.
struct TokenSource {
  std::string file = {};   // its path; its one line is the token
  std::string value = {};  // the token itself, from GRADWIRE_TOKEN; counts if there is no file
};

// "": there is none. InvalidArgument for what no daemon takes, Unavailable for a file that cannot
// be read; neither shows the token.
absl::StatusOr<std::string> ReadAccessToken(const TokenSource& source);

// Sends it with the call. Nothing for "".
void AddAccessToken(const std::string& token, grpc::ClientContext& context);

// InvalidArgument if a token would travel to another host without TLS.
absl::Status CheckTokenTravelsSafely(bool has_token, bool encrypted, const std::string& address);

// A unix socket or a loopback address.
bool IsThisHost(const std::string& address);

}  // namespace gradwire::tls

// A certificate that a process makes for itself, for those who are handed it in another way.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gradwire::tls {

struct OwnCertificate {
  std::string cert;  // PEM
  std::string key;   // PEM, without a passphrase: a secret
};

// For a server at `host`, an IP address or a DNS name, and for its calls to others. It is its own
// authority and nobody else's: it signs no other certificates. Its name is a random one, so that
// certificates of several processes fit into one file of authorities. InvalidArgument: `host` is
// neither, or `end` is not after `begin`. Internal: OpenSSL failed.
absl::StatusOr<OwnCertificate> MakeSelfSigned(const std::string& host, absl::Time begin,
                                              absl::Time end);

}  // namespace gradwire::tls

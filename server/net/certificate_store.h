// The daemon's certificate, and the authorities of its clients'. It can be replaced while
// connections continue.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/sync.h"
#include "proto/tls/pem.h"

namespace gradwire::server {

// Thread-safe.
class CertificateStore {
 public:
  // What Open would say. The authorities alone, without a certificate, can be checked too.
  static absl::Status Check(const tls::Files& files, absl::Time now);

  // Errors: tls::Read's.
  static absl::StatusOr<std::shared_ptr<CertificateStore>> Open(const tls::Files& files,
                                                                absl::Time now);

  // Reads the files again. True: they have changed and fit together, so the next connections get
  // what they say; connections that are open continue with what they began with. An error: they do
  // not fit, and nothing has changed; another call may find them complete.
  absl::StatusOr<bool> Reload(absl::Time now) GRADWIRE_EXCLUDES(mutex_);

  // Of the certificate.
  const std::string& path() const { return files_.cert; }
  absl::Time expiry() const GRADWIRE_EXCLUDES(mutex_);

  // For one address of one gRPC server. With an authority in the files, a client without a
  // certificate of its own is refused in the handshake.
  static std::shared_ptr<grpc::ServerCredentials> MakeCredentials(
      std::shared_ptr<CertificateStore> store);

  // What connections are to begin with, and its number, which counts the changes.
  tls::Pems Current(std::uint64_t& number) const GRADWIRE_EXCLUDES(mutex_);

 private:
  CertificateStore(tls::Files files, tls::Pems pems)
      : files_(std::move(files)), pems_(std::move(pems)) {}

  const tls::Files files_;
  mutable Mutex mutex_;
  tls::Pems pems_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint64_t number_ GRADWIRE_GUARDED_BY(mutex_) = 1;
};

}  // namespace gradwire::server

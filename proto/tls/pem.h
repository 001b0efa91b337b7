// Certificates and keys in PEM files.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gradwire::tls {

// Paths. Empty: there is none.
struct Files {
  std::string cert = {};  // this side's certificate, then those between it and its authority's
  std::string key = {};   // the certificate's private key, without a passphrase
  std::string ca = {};    // the authorities that may have signed the other side's certificate

  bool empty() const { return cert.empty() && key.empty() && ca.empty(); }
};

// The files' contents, checked.
struct Pems {
  std::string cert;
  std::string key;
  std::string ca;
  // When the first certificate, or one between it and its authority's, expires.
  absl::Time expiry = absl::InfiniteFuture();

  friend bool operator==(const Pems&, const Pems&) = default;
};

// The contents of a file of at most 1 MiB. `name` begins the errors.
absl::StatusOr<std::string> ReadSmallFile(const std::string& name, const std::string& path);

// What errors call the files: the settings that name them.
struct FieldNames {
  const char* cert = "tls_cert";
  const char* key = "tls_key";
  const char* ca = "tls_ca";
};

// Which files there may be: a certificate has its key.
absl::Status CheckFiles(const Files& files, const FieldNames& names = {});

// Reads the files. Any file may change meanwhile: what is returned fits together. InvalidArgument
// for what is no certificate or key, or for a key of another certificate, FailedPrecondition for a
// certificate that is not valid at `now`, Unavailable for files that cannot be read. No error
// contains a file's contents.
absl::StatusOr<Pems> Read(const Files& files, absl::Time now, const FieldNames& names = {});

}  // namespace gradwire::tls

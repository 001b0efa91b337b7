// Certificates for tests, made by OpenSSL: an authority, and what it signs.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/tls/pem.h"

namespace gradwire::testing {

struct CertificateAndKey {
  std::string cert;  // PEM
  std::string key;   // PEM
};

struct Validity {
  absl::Time begin = absl::Now() - absl::Hours(1);
  absl::Time end = absl::Now() + absl::Hours(24);
};

class Authority {
 public:
  explicit Authority(const std::string& name);

  // Its own certificate, PEM.
  const std::string& cert() const { return cert_; }

  // `hosts`: "DNS:name" and "IP:address", with commas between them.
  CertificateAndKey Issue(const std::string& common_name, const Validity& validity = {},
                          const std::string& hosts = "DNS:localhost,IP:127.0.0.1") const;

 private:
  using Key = std::shared_ptr<EVP_PKEY>;
  using Certificate = std::shared_ptr<X509>;
  static Certificate Make(const std::string& name, EVP_PKEY* key, const Validity& validity);

  Key key_;
  Certificate certificate_;
  std::string cert_;
};

// Writes it under another name first, so that a reader never sees half of it.
void ReplaceFile(const std::string& path, const std::string& text);

// Writes cert.pem, key.pem and, if it is not empty, ca.pem to a folder.
tls::Files WriteFiles(const std::string& folder, const CertificateAndKey& own,
                      const std::string& ca);

}  // namespace gradwire::testing

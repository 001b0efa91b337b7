#include "server/net/certificate_store.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <utility>

namespace gradwire::server {
namespace {

// As the daemon's settings are called.
constexpr tls::FieldNames kNames = {.ca = "tls_client_ca"};

// gRPC's own class for files that change reads them on its own clock, and takes a key and a
// certificate that do not fit, after which no handshake succeeds. This one asks the store at each
// handshake, and the store holds only what fits.
class StoreCredentials final : public grpc::ServerCredentials {
 public:
  StoreCredentials(std::shared_ptr<CertificateStore> store, bool clients_too)
      : store_(std::move(store)) {
    const auto request = clients_too ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                     : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, Fetch, this));
  }
  ~StoreCredentials() override { grpc_server_credentials_release(credentials_); }
  StoreCredentials(const StoreCredentials&) = delete;
  StoreCredentials& operator=(const StoreCredentials&) = delete;

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // gRPC calls it under a lock of the address, before each handshake.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    auto& own = *static_cast<StoreCredentials*>(self);
    std::uint64_t number = 0;
    const tls::Pems pems = own.store_->Current(number);
    if (number == own.fetched_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = pems.key.c_str(),
                                             .cert_chain = pems.cert.c_str()};
    // gRPC insists on authorities, also if it asks clients for no certificate.
    const std::string& authorities = pems.ca.empty() ? pems.cert : pems.ca;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    own.fetched_ = number;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<CertificateStore> store_;
  grpc_server_credentials* credentials_ = nullptr;
  std::uint64_t fetched_ = 0;
};

}  // namespace

absl::StatusOr<std::shared_ptr<CertificateStore>> CertificateStore::Open(const tls::Files& files,
                                                                         absl::Time now) {
  absl::StatusOr<tls::Pems> pems = tls::Read(files, now, kNames);
  if (!pems.ok()) return pems.status();
  return std::shared_ptr<CertificateStore>(new CertificateStore(files, *std::move(pems)));
}

absl::Status CertificateStore::Check(const tls::Files& files, absl::Time now) {
  return tls::Read(files, now, kNames).status();
}

absl::StatusOr<bool> CertificateStore::Reload(absl::Time now) {
  absl::StatusOr<tls::Pems> pems = tls::Read(files_, now, kNames);
  if (!pems.ok()) return pems.status();
  MutexLock lock(mutex_);
  if (*pems == pems_) return false;
  pems_ = *std::move(pems);
  ++number_;
  return true;
}

absl::Time CertificateStore::expiry() const {
  MutexLock lock(mutex_);
  return pems_.expiry;
}

tls::Pems CertificateStore::Current(std::uint64_t& number) const {
  MutexLock lock(mutex_);
  number = number_;
  return pems_;
}

std::shared_ptr<grpc::ServerCredentials> CertificateStore::MakeCredentials(
    std::shared_ptr<CertificateStore> store) {
  std::uint64_t number = 0;
  const bool clients_too = !store->Current(number).ca.empty();
  return std::make_shared<StoreCredentials>(std::move(store), clients_too);
}

}  // namespace gradwire::server

#include "server/daemon/ports.h"

#include <grpcpp/security/server_credentials.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/time/clock.h"

namespace gradwire::server {
namespace {

constexpr absl::Duration kReload = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<Ports>> Ports::Open(const ServerOptions& options,
                                                   int max_connections) {
  std::unique_ptr<Ports> ports(
      new Ports(absl::ToChronoMilliseconds(options.handshake_timeout), max_connections));
  if (!options.tls.cert.empty()) {
    auto store = CertificateStore::Open(options.tls, absl::Now());
    if (!store.ok()) return store.status();
    ports->certificates_ = *std::move(store);
  }
  for (const std::string& address : options.listen) {
    absl::StatusOr<std::vector<Listener>> opened = Listener::Open(address);
    if (!opened.ok()) return opened.status();
    for (Listener& listener : *opened) {
      ports->addresses_.push_back(listener.address());
      if (listener.is_unix()) ports->local_fds_.insert(listener.fd());
      ports->listeners_.push_back(std::move(listener));
    }
  }
  return ports;
}

void Ports::AddTo(grpc::ServerBuilder& builder) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  const auto add = [&](std::shared_ptr<grpc::ServerCredentials> credentials) {
    return builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD,
                                                                std::move(credentials));
  };
  local_ = add(grpc::InsecureServerCredentials());
  tcp_ = add(certificates_ == nullptr ? grpc::InsecureServerCredentials()
                                      : CertificateStore::MakeCredentials(certificates_));
}

absl::Status Ports::Serve(Acceptor::OfferHandler take_offer) {
  auto acceptor = Acceptor::Make(
      std::move(listeners_),
      {.max_connections = max_connections_, .first_byte_timeout = first_byte_timeout_},
      [this](int listener_fd, UniqueFd connection) {
        FromOutside::NewConnectionParameters parameters;
        parameters.listener_fd = listener_fd;
        // gRPC closes the descriptor from here on.
        parameters.fd = connection.Release();
        (local_fds_.contains(listener_fd) ? local_ : tcp_)->HandleNewConnection(&parameters);
      },
      std::move(take_offer));
  if (!acceptor.ok()) return acceptor.status();
  acceptor_ = *std::move(acceptor);
  if (certificates_ != nullptr) {
    reloader_.emplace(kReload, [this](absl::Time /*now*/) { ReloadCertificates(); });
  }
  // Last: calls come from here on, and ask for connections().
  acceptor_->Serve();
  return absl::OkStatus();
}

void Ports::Stop() {
  if (reloader_) reloader_->Stop();
  if (acceptor_ != nullptr) acceptor_->Stop();
}

// Whoever replaces the files writes one after the other, so an error may last for a moment only.
void Ports::ReloadCertificates() {
  const absl::StatusOr<bool> changed = certificates_->Reload(absl::Now());
  const std::string error(changed.status().message());
  if (!error.empty() && error != reload_error_) {
    spdlog::error("the certificate stays as it was: {}", error);
  }
  reload_error_ = error;
  if (!changed.ok() || !*changed) return;
  spdlog::info("new connections get the new certificate, which is valid until {}",
               absl::FormatTime(absl::RFC3339_sec, certificates_->expiry(), absl::UTCTimeZone()));
}

}  // namespace gradwire::server

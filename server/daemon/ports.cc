#include "server/daemon/ports.h"

#include <grpcpp/security/server_credentials.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/time/clock.h"

namespace gradwire::server {
namespace {

constexpr absl::Duration kReload = absl::Seconds(1);

// Whether there is something new. Logs an error once. Whoever replaces files writes one after the
// other, so an error may last for a moment only.
bool SayReload(const std::string& what, const absl::StatusOr<bool>& changed, std::string& last) {
  const std::string error(changed.status().message());
  if (!error.empty() && error != last) spdlog::error("{} stays as it was: {}", what, error);
  last = error;
  return changed.ok() && *changed;
}

}  // namespace

Ports::Ports(const ServerOptions& options, const IntakeLimits& intake, int max_connections)
    : first_byte_timeout_(absl::ToChronoMilliseconds(options.handshake_timeout)),
      max_connections_(max_connections),
      intake_(intake, [this](CutReason reason, const std::string& sentence) {
        ++cut_[static_cast<std::size_t>(reason)];
        const auto left_out = cuts_.Allow(std::chrono::steady_clock::now());
        if (!left_out) return;
        if (*left_out > 0) spdlog::warn("{} more connections were cut", *left_out);
        spdlog::warn("{}", sentence);
      }) {}

absl::StatusOr<std::unique_ptr<Ports>> Ports::Open(const ServerOptions& options,
                                                   const IntakeLimits& intake,
                                                   int max_connections) {
  std::unique_ptr<Ports> ports(new Ports(options, intake, max_connections));
  if (!options.tls.cert.empty()) {
    auto store = CertificateStore::Open(options.tls, absl::Now());
    if (!store.ok()) return store.status();
    ports->certificates_ = *std::move(store);
  }
  auto access = AccessControl::Open(options.tokens);
  if (!access.ok()) return access.status();
  ports->access_ = *std::move(access);
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
      {.max_connections = max_connections_,
       .first_byte_timeout = first_byte_timeout_,
       .intake = &intake_},
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
  if (certificates_ != nullptr || access_->has_file()) {
    reloader_.emplace(kReload, [this](absl::Time /*now*/) { Reload(); });
  }
  // Last: calls come from here on, and ask for connections().
  acceptor_->Serve();
  return absl::OkStatus();
}

void Ports::Stop() {
  if (reloader_) reloader_->Stop();
  if (acceptor_ != nullptr) acceptor_->Stop();
}

absl::StatusOr<Caller> Ports::Admit(const std::string& method, const Proof& proof) const {
  absl::StatusOr<Caller> caller = access_->Admit(method, proof);
  if (caller.ok()) return caller;
  ++(caller.status().code() == absl::StatusCode::kUnauthenticated ? unauthenticated_ : denied_);
  if (const auto left_out = refusals_.Allow(std::chrono::steady_clock::now())) {
    if (*left_out > 0) spdlog::warn("{} more calls were refused", *left_out);
    spdlog::warn("refused a call of {}: {}", method, std::string(caller.status().message()));
  }
  return caller;
}

absl::StatusOr<Caller> Ports::AdmitReader(const std::string& authorization) const {
  return Admit("/gradwire.v1.AdminService/ListSessions", {.authorization = authorization});
}

std::uint64_t Ports::connections_cut() const {
  std::uint64_t sum = 0;
  for (const auto& one : cut_) sum += one.load(std::memory_order_relaxed);
  return sum;
}

PortFigures Ports::figures() const {
  const auto cut = [this](CutReason reason) {
    return cut_[static_cast<std::size_t>(reason)].load(std::memory_order_relaxed);
  };
  PortFigures figures{.refused_connections = acceptor_ == nullptr ? 0 : acceptor_->refused(),
                      .unauthenticated_calls = unauthenticated_,
                      .denied_calls = denied_,
                      .cut_too_much = cut(CutReason::kTooMuch),
                      .cut_too_slow = cut(CutReason::kTooSlow),
                      .cut_too_many_peers = cut(CutReason::kTooManyPeers),
                      .cut_no_call = cut(CutReason::kNoCall),
                      .cut_too_many_calls = cut(CutReason::kTooManyCalls)};
  if (certificates_ != nullptr) figures.certificate_expiry = certificates_->expiry();
  return figures;
}

void Ports::Reload() {
  if (certificates_ != nullptr &&
      SayReload("the certificate", certificates_->Reload(absl::Now()), certificate_error_)) {
    spdlog::info("new connections get the new certificate, which is valid until {}",
                 absl::FormatTime(absl::RFC3339_sec, certificates_->expiry(), absl::UTCTimeZone()));
  }
  if (SayReload("the list of tokens", access_->Reload(), token_error_)) {
    spdlog::info("new calls go by the new list of tokens");
  }
}

}  // namespace gradwire::server

#include "server/daemon/ports.h"

#include <grpcpp/security/server_credentials.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/printable.h"

namespace gradwire::server {
namespace {

constexpr absl::Duration kReload = absl::Seconds(1);
constexpr std::size_t kShownBytes = 200;

// Services record what became of these calls themselves.
bool IsRecorded(const std::string& method) {
  return absl::EndsWith(method, "/Join") || absl::EndsWith(method, "/JoinInParts") ||
         absl::EndsWith(method, "/Leave") || absl::EndsWith(method, "/ExportState") ||
         absl::EndsWith(method, "/ImportState");
}

}  // namespace

Ports::Ports(const ServerOptions& options, const IntakeLimits& intake, int max_connections,
             std::shared_ptr<AuditSink> audit)
    : first_byte_timeout_(absl::ToChronoMilliseconds(options.handshake_timeout)),
      max_connections_(max_connections),
      audit_(std::move(audit)),
      intake_(intake, [this](CutReason reason, const std::string& peer,
                             const std::string& sentence) { OnCut(reason, peer, sentence); }) {}

void Ports::OnCut(CutReason reason, const std::string& peer, const std::string& sentence) {
  ++cut_[static_cast<std::size_t>(reason)];
  if (audit_ != nullptr) {
    audit_->Record({.event = "connection_cut",
                    .outcome = AuditEvent::Outcome::kRefused,
                    .peer = peer,
                    .reason = sentence});
  }
  const auto left_out = cuts_.Allow(std::chrono::steady_clock::now());
  if (!left_out) return;
  if (*left_out > 0) spdlog::warn("{} more connections were cut", *left_out);
  spdlog::warn("{}", sentence);
}

absl::StatusOr<std::unique_ptr<Ports>> Ports::Open(const ServerOptions& options,
                                                   const IntakeLimits& intake, int max_connections,
                                                   std::shared_ptr<AuditSink> audit) {
  std::unique_ptr<Ports> ports(new Ports(options, intake, max_connections, std::move(audit)));
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
  Count(method, caller.status());
  if (audit_ != nullptr) {
    // Who it is, if its token is known and only its role does not do.
    const absl::StatusOr<Caller> who = access_->Identify(method, proof);
    AuditEvent event = EventOf("call_refused", who.ok() ? *who : Caller(), "", caller.status());
    if (!who.ok()) {
      event.identity = event.role = "";
      event.certificate = proof.certificate;
      event.peer = proof.peer;
    }
    event.reason = absl::StrCat(Printable(method.substr(0, kShownBytes)), ": ", event.reason);
    audit_->Record(std::move(event));
  }
  return caller;
}

void Ports::OnDenied(const std::string& method, const Caller& caller,
                     const absl::Status& why) const {
  Count(method, why);
  if (audit_ == nullptr || IsRecorded(method)) return;
  AuditEvent event = EventOf("call_refused", caller, "", why);
  event.reason = absl::StrCat(method, ": ", event.reason);
  audit_->Record(std::move(event));
}

void Ports::Count(const std::string& method, const absl::Status& why) const {
  ++(absl::IsUnauthenticated(why) ? unauthenticated_ : denied_);
  const auto left_out = refusals_.Allow(std::chrono::steady_clock::now());
  if (!left_out) return;
  if (*left_out > 0) spdlog::warn("{} more calls were refused", *left_out);
  spdlog::warn("refused a call of {}: {}", method, std::string(why.message()));
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
  PortFigures figures{
      .refused_connections = acceptor_ == nullptr ? 0 : acceptor_->refused(),
      .connections_without_call = acceptor_ == nullptr ? 0 : acceptor_->without_call(),
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

// Whether there is something new. Logs an error once. Whoever replaces files writes one after the
// other, so an error may last for a moment only.
bool Ports::SayReload(const std::string& what, const std::string& event,
                      const absl::StatusOr<bool>& changed, std::string& last) const {
  const std::string error(changed.status().message());
  const bool is_new = changed.ok() ? *changed : error != last;
  if (!changed.ok() && is_new) spdlog::error("{} stays as it was: {}", what, error);
  last = error;
  if (audit_ != nullptr && is_new) {
    audit_->Record(
        {.event = event,
         .outcome = changed.ok() ? AuditEvent::Outcome::kDone : AuditEvent::Outcome::kRefused,
         .reason = error});
  }
  return changed.ok() && *changed;
}

void Ports::Reload() {
  if (certificates_ != nullptr &&
      SayReload("the certificate", "certificate_reloaded", certificates_->Reload(absl::Now()),
                certificate_error_)) {
    spdlog::info("new connections get the new certificate, which is valid until {}",
                 absl::FormatTime(absl::RFC3339_sec, certificates_->expiry(), absl::UTCTimeZone()));
  }
  if (SayReload("the list of tokens", "tokens_reloaded", access_->Reload(), token_error_)) {
    spdlog::info("new calls go by the new list of tokens");
  }
}

}  // namespace gradwire::server

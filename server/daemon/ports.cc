#include "server/daemon/ports.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/error_code.h"
#include "server/access/permissions.h"
#include "server/daemon/grpc_settings.h"

namespace gradwire::server {
namespace {

constexpr absl::Duration kReload = absl::Seconds(1);
constexpr mode_t kPrivateMode = 0600;

// Whether there is something new. Logs an error once. Whoever replaces files writes one after the
// other, so an error may last for a moment only.
bool SayReload(const std::string& what, const absl::StatusOr<bool>& changed, std::string& last) {
  const std::string error(changed.status().message());
  if (!error.empty() && error != last) spdlog::error("{} stays as it was: {}", what, error);
  last = error;
  return changed.ok() && *changed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gate>> Ports::OpenGate(const GateOptions& options) {
  const auto log = [](LineLimit& limit, const char* more, const std::string& sentence) {
    const auto left_out = limit.Allow(std::chrono::steady_clock::now());
    if (!left_out) return;
    if (*left_out > 0) spdlog::warn("{} more connections were {}", *left_out, more);
    spdlog::warn("{}", sentence);
  };
  return Gate::Open(
      options,
      [this, log](CutReason reason, const std::string& sentence) {
        ++cut_[static_cast<std::size_t>(reason)];
        log(cuts_, "cut", sentence);
      },
      [this, log](const std::string& sentence) { log(users_, "refused", sentence); });
}

absl::StatusOr<std::unique_ptr<Ports>> Ports::Open(const ServerOptions& options,
                                                   const IntakeLimits& intake,
                                                   int max_connections) {
  std::unique_ptr<Ports> ports(new Ports());
  if (!options.tls.cert.empty()) {
    auto store = CertificateStore::Open(options.tls, absl::Now());
    if (!store.ok()) return store.status();
    ports->certificates_ = *std::move(store);
  }
  HostUsers users = ReadHostUsers(options.SocketMode() == kPrivateMode);
  auto access = AccessControl::Open(options.tokens, users);
  if (!access.ok()) return access.status();
  ports->access_ = *std::move(access);
  const bool has_admin = !options.admin_listen.empty();
  // With few descriptors, members' connections are not the only ones to be fewer.
  const int for_admin =
      has_admin ? std::clamp(max_connections / 8, 1, ServerOptions::kAdminConnections) : 0;
  GateOptions gate{
      .listen = options.listen,
      .socket_mode = options.SocketMode(),
      .own_users = std::move(users.operators),
      .first_byte_timeout = absl::ToChronoMilliseconds(options.handshake_timeout),
      .intake = intake,
      .max_connections = std::clamp(max_connections - for_admin, 1, options.max_connections)};
  auto members = ports->OpenGate(gate);
  if (!members.ok()) return members.status();
  ports->members_ = *std::move(members);
  if (!has_admin) return ports;
  gate.listen = options.admin_listen;
  gate.socket_mode = kPrivateMode;
  gate.max_connections = for_admin;
  gate.intake.strangers_bytes = AdminStrangersBytes(intake.strangers_bytes);
  auto admin = ports->OpenGate(gate);
  if (!admin.ok()) return admin.status();
  ports->admin_ = *std::move(admin);
  return ports;
}

void Ports::AddTo(Side side, grpc::ServerBuilder& builder) {
  GateOf(side)->AddTo(builder, certificates_);
}

Door Ports::DoorOf(Side side) const {
  return {
      .admit = [this, side](const std::string& method,
                            const Proof& proof) { return Admit(side, method, proof); },
      .meter_of = [gate = GateOf(side)](const std::string& peer) { return gate->MeterOf(peer); }};
}

absl::Status Ports::Serve(Acceptor::OfferHandler take_offer, std::function<void()> on_admin) {
  if (certificates_ != nullptr || access_->has_file()) {
    reloader_.emplace(kReload, [this](absl::Time /*now*/) { Reload(); });
  }
  if (admin_ != nullptr) {
    if (absl::Status status = admin_->Serve(nullptr, std::move(on_admin)); !status.ok())
      return status;
  }
  return members_->Serve(std::move(take_offer), nullptr);
}

void Ports::Stop() {
  if (reloader_) reloader_->Stop();
  if (members_ != nullptr) members_->Stop();
  if (admin_ != nullptr) admin_->Stop();
}

// The addresses are told only to those who may make the call there.
absl::StatusOr<Caller> Ports::Decide(Side side, const std::string& method,
                                     const Proof& proof) const {
  absl::StatusOr<Caller> caller = access_->Admit(method, proof);
  if (!caller.ok() || side == Side::kAdmin || admin_ == nullptr || !IsForAdminAddresses(method)) {
    return caller;
  }
  return Coded(ErrorCode::kAdminAddress,
               absl::PermissionDeniedError(
                   absl::StrCat("admin calls have addresses of their own (--admin-listen): ",
                                absl::StrJoin(admin_->addresses(), ", "))));
}

absl::StatusOr<Caller> Ports::Admit(Side side, const std::string& method,
                                    const Proof& proof) const {
  absl::StatusOr<Caller> caller = Decide(side, method, proof);
  if (caller.ok()) return caller;
  ++(caller.status().code() == absl::StatusCode::kUnauthenticated ? unauthenticated_ : denied_);
  if (const auto left_out = refusals_.Allow(std::chrono::steady_clock::now())) {
    if (*left_out > 0) spdlog::warn("{} more calls were refused", *left_out);
    spdlog::warn("refused a call of {}: {}", method, std::string(caller.status().message()));
  }
  return caller;
}

absl::StatusOr<Caller> Ports::AdmitReader(const std::string& authorization) const {
  // Over HTTP there are no addresses for members.
  return Admit(Side::kAdmin, "/gradwire.v1.AdminService/ListSessions",
               {.authorization = authorization});
}

int Ports::connections() const { return members_->connections() + admin_connections(); }

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
      .refused_connections = members_->refused() + (admin_ == nullptr ? 0 : admin_->refused()),
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

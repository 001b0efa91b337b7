#include "server/daemon/ports.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "server/access/permissions.h"
#include "server/daemon/grpc_settings.h"

namespace gradwire::server {
namespace {

constexpr absl::Duration kReload = absl::Seconds(1);
constexpr std::size_t kShownBytes = 200;
constexpr mode_t kPrivateMode = 0600;

// Services record what became of these calls themselves.
bool IsRecorded(const std::string& method) {
  return absl::EndsWith(method, "/Join") || absl::EndsWith(method, "/JoinInParts") ||
         absl::EndsWith(method, "/Leave") || absl::EndsWith(method, "/ExportState") ||
         absl::EndsWith(method, "/ImportState");
}

// Who called, for the log: the address, or who it is on a unix socket.
std::string OriginOf(const std::string& peer, const std::string& local) {
  const std::string& origin = peer.empty() ? local : peer;
  return origin.empty() ? "" : absl::StrCat(" from ", Printable(origin));
}

void LogSome(LineLimit& limit, const char* more, const std::string& sentence) {
  const auto left_out = limit.Allow(std::chrono::steady_clock::now());
  if (!left_out) return;
  if (*left_out > 0) spdlog::warn("{} more {}", *left_out, more);
  spdlog::warn("{}", sentence);
}

}  // namespace

void Ports::OnCut(CutReason reason, const std::string& peer, const std::string& sentence) {
  ++cut_[static_cast<std::size_t>(reason)];
  if (audit_ != nullptr) {
    audit_->Record({.event = "connection_cut",
                    .outcome = AuditEvent::Outcome::kRefused,
                    .peer = peer,
                    .reason = sentence});
  }
  LogSome(cuts_, "connections were cut", sentence);
}

void Ports::OnRefusedUser(const std::string& sentence) {
  if (audit_ != nullptr) {
    audit_->Record(
        {.event = "connection_cut", .outcome = AuditEvent::Outcome::kRefused, .reason = sentence});
  }
  LogSome(users_, "connections were refused", sentence);
}

absl::StatusOr<std::unique_ptr<Gate>> Ports::OpenGate(const GateOptions& options) {
  return Gate::Open(
      options,
      [this](CutReason reason, const std::string& peer, const std::string& sentence) {
        OnCut(reason, peer, sentence);
      },
      [this](const std::string& sentence) { OnRefusedUser(sentence); });
}

absl::StatusOr<std::unique_ptr<Ports>> Ports::Open(const ServerOptions& options,
                                                   const IntakeLimits& intake, int max_connections,
                                                   std::shared_ptr<AuditSink> audit) {
  std::unique_ptr<Ports> ports(new Ports(std::move(audit)));
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
      .meter_of = [gate = GateOf(side)](const std::string& peer) { return gate->MeterOf(peer); },
      .on_denied = [this](const std::string& method, const Caller& caller,
                          const absl::Status& why) { OnDenied(method, caller, why); }};
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
  Count(absl::StrCat(proof.over_http ? "an HTTP request" : absl::StrCat("a call of ", method),
                     OriginOf(proof.peer, proof.user ? LocalIdentity(*proof.user) : "")),
        caller.status());
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
  // On a unix socket the identity is the user's.
  Count(absl::StrCat("a call of ", method, OriginOf(caller.peer, caller.identity)), why);
  if (audit_ == nullptr || IsRecorded(method)) return;
  AuditEvent event = EventOf("call_refused", caller, "", why);
  event.reason = absl::StrCat(method, ": ", event.reason);
  audit_->Record(std::move(event));
}

void Ports::Count(const std::string& what, const absl::Status& why) const {
  ++(absl::IsUnauthenticated(why) ? unauthenticated_ : denied_);
  LogSome(refusals_, "calls were refused",
          absl::StrCat("refused ", what, ": ", std::string(why.message())));
}

absl::StatusOr<Caller> Ports::AdmitReader(const std::string& authorization,
                                          const std::string& peer) const {
  // Over HTTP there are no addresses for members.
  return Admit(Side::kAdmin, "/gradwire.v1.AdminService/ListSessions",
               {.authorization = authorization, .peer = peer, .over_http = true});
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
      .connections_without_call =
          members_->without_call() + (admin_ == nullptr ? 0 : admin_->without_call()),
      .unauthenticated_calls = unauthenticated_,
      .denied_calls = denied_,
      .cut_too_much = cut(CutReason::kTooMuch),
      .cut_too_slow = cut(CutReason::kTooSlow),
      .cut_too_many_peers = cut(CutReason::kTooManyPeers),
      .cut_no_call = cut(CutReason::kNoCall),
      .cut_too_many_calls = cut(CutReason::kTooManyCalls),
      .cut_frames = cut(CutReason::kFrames)};
  if (certificates_ != nullptr) figures.certificate_expiry = certificates_->expiry();
  return figures;
}

// Whether there is something new. Logs an error once, and its end. Whoever replaces files writes
// one after the other, so an error may last for a moment only.
bool Ports::SayReload(const std::string& what, const std::string& event,
                      const absl::StatusOr<bool>& changed, std::string& last) const {
  const std::string error(changed.status().message());
  const bool repaired = changed.ok() && !last.empty();
  const bool is_new = changed.ok() ? *changed || repaired : error != last;
  if (!changed.ok() && is_new) spdlog::error("{} stays as it was: {}", what, error);
  // What has changed is the caller's to log.
  if (repaired && !*changed) spdlog::info("{} can be read again, and is as it was", what);
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
      SayReload(absl::StrCat("the certificate of ", certificates_->path()), "certificate_reloaded",
                certificates_->Reload(absl::Now()), certificate_error_)) {
    spdlog::info("new connections get the new certificate, which is valid until {}",
                 absl::FormatTime(absl::RFC3339_sec, certificates_->expiry(), absl::UTCTimeZone()));
  }
  if (SayReload(absl::StrCat("the list of tokens in ", access_->path()), "tokens_reloaded",
                access_->Reload(), token_error_)) {
    spdlog::info("new calls go by the new list of tokens");
  }
}

}  // namespace gradwire::server

// The addresses that the daemon listens on: those of members, and those of admin calls. Who may
// connect, and who may call what.
#pragma once

#include <grpcpp/server_builder.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/access/access_control.h"
#include "server/access/audit.h"
#include "server/daemon/gate.h"
#include "server/daemon/line_limit.h"
#include "server/daemon/options.h"
#include "server/daemon/ticker.h"
#include "server/http/figures.h"
#include "server/net/certificate_store.h"
#include "server/rpc/call_server.h"

namespace gradwire::server {

// Open, AddTo for each side, Serve, Stop: in this order, each once.
class Ports {
 public:
  // Each has a gRPC server, connections, threads and limits of its own, so that what comes to the
  // members' addresses cannot keep operators out.
  enum class Side : std::uint8_t { kMembers, kAdmin };

  // Listens, and reads the certificates. Connections wait. `max_connections`: of both sides.
  // `audit` may be null.
  static absl::StatusOr<std::unique_ptr<Ports>> Open(const ServerOptions& options,
                                                     const IntakeLimits& intake,
                                                     int max_connections,
                                                     std::shared_ptr<AuditSink> audit);
  ~Ports() { Stop(); }
  Ports(const Ports&) = delete;
  Ports& operator=(const Ports&) = delete;

  // Tells the side's gRPC server where its connections come from.
  void AddTo(Side side, grpc::ServerBuilder& builder);
  // What the side's server asks about each call. It refers to this object.
  Door DoorOf(Side side) const;

  // A call that was admitted was refused for what it asked: the session of another, or another's
  // membership. Thread-safe.
  void OnDenied(const std::string& method, const Caller& caller, const absl::Status& why) const;

  // Lets connections in; gRPC's servers have started. `take_offer`: see Acceptor. `on_admin`: see
  // Gate::Serve.
  absl::Status Serve(Acceptor::OfferHandler take_offer, std::function<void()> on_admin);

  // Thread-safe.
  PortFigures figures() const;
  // Who asks over HTTP for what observers may see, by the header "Authorization". `peer`: the
  // reader's address, for the logs. Thread-safe.
  absl::StatusOr<Caller> AdmitReader(const std::string& authorization,
                                     const std::string& peer) const;

  // Lets no further ones in.
  void Stop();

  // With the ports that were taken; of kAdmin, none if admin calls have no addresses of their own.
  const std::vector<std::string>& addresses(Side side) const { return GateOf(side)->addresses(); }
  bool has_admin() const { return admin_ != nullptr; }
  // That held or cost more than a peer may.
  std::uint64_t connections_cut() const;
  int connections() const;
  int admin_connections() const { return admin_ == nullptr ? 0 : admin_->connections(); }
  // However many join at once, most connections are left for those that members cannot do without.
  bool HasRoom() const { return members_->connections() <= members_->max_connections() / 4; }

 private:
  static constexpr int kRefusalsPerSecond = 10;

  explicit Ports(std::shared_ptr<AuditSink> audit) : audit_(std::move(audit)) {}

  absl::StatusOr<std::unique_ptr<Gate>> OpenGate(const GateOptions& options);
  Gate* GateOf(Side side) const { return side == Side::kAdmin ? admin_.get() : members_.get(); }
  // Who may call the method on this side; refusals are counted and logged. Thread-safe.
  absl::StatusOr<Caller> Admit(Side side, const std::string& method, const Proof& proof) const;
  absl::StatusOr<Caller> Decide(Side side, const std::string& method, const Proof& proof) const;
  void Count(const std::string& what, const absl::Status& why) const;
  void OnCut(CutReason reason, const std::string& peer, const std::string& sentence);
  void OnRefusedUser(const std::string& sentence);
  void Reload();
  bool SayReload(const std::string& what, const std::string& event,
                 const absl::StatusOr<bool>& changed, std::string& last) const;

  const std::shared_ptr<AuditSink> audit_;          // null: there is no audit log
  std::shared_ptr<CertificateStore> certificates_;  // null: no TLS
  std::unique_ptr<AccessControl> access_;
  mutable LineLimit refusals_{kRefusalsPerSecond};
  LineLimit cuts_{kRefusalsPerSecond};
  LineLimit users_{kRefusalsPerSecond};
  mutable std::atomic<std::uint64_t> unauthenticated_ = 0;
  mutable std::atomic<std::uint64_t> denied_ = 0;
  std::array<std::atomic<std::uint64_t>, kCutReasons> cut_{};  // by CutReason
  // The reloader's: the last errors that were logged.
  std::string certificate_error_;
  std::string token_error_;
  std::unique_ptr<Gate> members_;
  std::unique_ptr<Gate> admin_;  // null: admin calls come to the members' addresses
  // A thread of its own, because reading a file may take long.
  std::optional<Ticker> reloader_;
};

}  // namespace gradwire::server

// The addresses that the daemon listens on: who may connect, and how connections reach gRPC.
#pragma once

#include <grpcpp/server_builder.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "server/access/access_control.h"
#include "server/access/audit.h"
#include "server/daemon/line_limit.h"
#include "server/daemon/options.h"
#include "server/daemon/ticker.h"
#include "server/http/figures.h"
#include "server/net/acceptor.h"
#include "server/net/certificate_store.h"
#include "server/net/intake.h"

namespace gradwire::server {

// Open, AddTo, Serve, Stop: in this order, each once.
class Ports {
 public:
  // Listens, and reads the certificates. Connections wait. `audit` may be null.
  static absl::StatusOr<std::unique_ptr<Ports>> Open(const ServerOptions& options,
                                                     const IntakeLimits& intake,
                                                     int max_connections,
                                                     std::shared_ptr<AuditSink> audit);
  ~Ports() { Stop(); }
  Ports(const Ports&) = delete;
  Ports& operator=(const Ports&) = delete;

  // Tells gRPC where its connections come from. The daemon accepts them itself: gRPC can neither
  // limit their number nor recognize an offer of memory.
  void AddTo(grpc::ServerBuilder& builder);

  // Lets connections in; gRPC's server has started. `take_offer`: see Acceptor.
  absl::Status Serve(Acceptor::OfferHandler take_offer);

  // Who may call the method; refusals are logged. Thread-safe.
  absl::StatusOr<Caller> Admit(const std::string& method, const Proof& proof) const;

  // A call that was admitted was refused for what it asked: the session of another, or another's
  // membership. Thread-safe.
  void OnDenied(const std::string& method, const Caller& caller, const absl::Status& why) const;

  // Of the connection of this peer, as gRPC names it; null: it is not TCP. Thread-safe.
  std::shared_ptr<TrafficMeter> MeterOf(const std::string& peer) const {
    return intake_.Find(peer);
  }

  // Thread-safe.
  PortFigures figures() const;
  // Who asks over HTTP for what observers may see, by the header "Authorization". Thread-safe.
  absl::StatusOr<Caller> AdmitReader(const std::string& authorization) const;

  // Lets no further ones in.
  void Stop();

  // With the ports that were taken.
  const std::vector<std::string>& addresses() const { return addresses_; }
  // That held or cost more than a peer may.
  std::uint64_t connections_cut() const;
  int connections() const { return acceptor_ == nullptr ? 0 : acceptor_->connections(); }
  // However many join at once, most connections are left for those that members cannot do without.
  bool HasRoom() const { return connections() <= max_connections_ / 4; }

 private:
  static constexpr int kRefusalsPerSecond = 10;
  using FromOutside = grpc::experimental::ExternalConnectionAcceptor;

  Ports(const ServerOptions& options, const IntakeLimits& intake, int max_connections,
        std::shared_ptr<AuditSink> audit);

  void Count(const std::string& method, const absl::Status& why) const;
  void OnCut(CutReason reason, const std::string& peer, const std::string& sentence);
  void Reload();
  bool SayReload(const std::string& what, const std::string& event,
                 const absl::StatusOr<bool>& changed, std::string& last) const;

  const std::chrono::milliseconds first_byte_timeout_;
  const int max_connections_;
  const std::shared_ptr<AuditSink> audit_;  // null: there is no audit log
  std::vector<Listener> listeners_;         // until Serve
  std::vector<std::string> addresses_;
  std::unordered_set<int> local_fds_;               // listeners on unix sockets
  std::shared_ptr<CertificateStore> certificates_;  // null: no TLS
  std::unique_ptr<AccessControl> access_;
  mutable LineLimit refusals_{kRefusalsPerSecond};
  LineLimit cuts_{kRefusalsPerSecond};
  mutable std::atomic<std::uint64_t> unauthenticated_ = 0;
  mutable std::atomic<std::uint64_t> denied_ = 0;
  std::array<std::atomic<std::uint64_t>, kCutReasons> cut_{};  // by CutReason
  Intake intake_;
  // The reloader's: the last errors that were logged.
  std::string certificate_error_;
  std::string token_error_;
  // Each has credentials of its own: a unix socket needs no TLS.
  std::unique_ptr<FromOutside> local_;
  std::unique_ptr<FromOutside> tcp_;
  std::unique_ptr<Acceptor> acceptor_;  // from Serve on
  // A thread of its own, because reading a file may take long.
  std::optional<Ticker> reloader_;
};

}  // namespace gradwire::server

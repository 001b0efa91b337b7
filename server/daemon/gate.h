// The addresses of one gRPC server: who may connect, and how connections reach gRPC.
#pragma once

#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/net/acceptor.h"
#include "server/net/certificate_store.h"
#include "server/net/hand_over.h"
#include "server/net/intake.h"
#include "server/net/local_users.h"
#include "server/net/processor_waits.h"
#include "server/net/read_guard.h"

namespace gradwire::server {

struct GateOptions {
  std::vector<std::string> listen;
  mode_t socket_mode = 0600;     // of unix sockets
  std::vector<uid_t> own_users;  // who have no limit on unix sockets
  std::chrono::milliseconds first_byte_timeout{3000};
  IntakeLimits intake = {};
  int max_connections = 0;
};

// Open, AddTo, Serve, Stop: in this order, each once.
class Gate {
 public:
  // Listens. Connections wait. `on_cut`, `on_refused_user`: of Intake and LocalUsers.
  static absl::StatusOr<std::unique_ptr<Gate>> Open(const GateOptions& options,
                                                    Intake::OnCut on_cut,
                                                    LocalUsers::OnRefused on_refused_user);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Tells gRPC where its connections come from. The daemon accepts them itself: gRPC can neither
  // limit their number, nor recognize an offer of memory, nor tell whose a unix connection is.
  // `certificates`: of TCP connections; null: no TLS.
  void AddTo(grpc::ServerBuilder& builder, const std::shared_ptr<CertificateStore>& certificates);

  // Lets connections in; gRPC's server has started. `take_offer`: see Acceptor. Null: offers of
  // memory are closed. `on_connection`: called for each, counted already, before gRPC has it; may
  // be null.
  absl::Status Serve(Acceptor::OfferHandler take_offer, std::function<void()> on_connection);

  // Lets no further ones in.
  void Stop();

  // With the ports that were taken.
  const std::vector<std::string>& addresses() const { return addresses_; }

  // Thread-safe.
  // Of the connection of this peer, as gRPC names it; null: it is not TCP.
  std::shared_ptr<TrafficMeter> MeterOf(const std::string& peer) const {
    return intake_.Find(peer);
  }
  int connections() const { return acceptor_ == nullptr ? 0 : acceptor_->connections(); }
  std::uint64_t refused() const { return acceptor_ == nullptr ? 0 : acceptor_->refused(); }
  std::uint64_t without_call() const {
    return acceptor_ == nullptr ? 0 : acceptor_->without_call();
  }
  int max_connections() const { return options_.max_connections; }

 private:
  using FromOutside = grpc::experimental::ExternalConnectionAcceptor;

  Gate(const GateOptions& options, Intake::OnCut on_cut, LocalUsers::OnRefused on_refused_user);

  void OnBreach(const GuardedPeer& peer, const char* what);
  void Give(HandOver::Connection connection);

  const GateOptions options_;
  const Intake::OnCut on_cut_;
  std::vector<Listener> listeners_;  // until Serve
  std::vector<std::string> addresses_;
  ProcessorWaits waits_;
  Intake intake_;
  LocalUsers users_;
  // Each has credentials of its own: those of a unix socket are its user.
  std::vector<std::unique_ptr<FromOutside>> local_;  // by the user's slot; none without a socket
  std::unique_ptr<FromOutside> tcp_;
  bool has_tls_ = false;  // of tcp_
  ReadGuardOptions read_guard_;
  std::unique_ptr<HandOver> hand_over_;  // from Serve on
  std::unique_ptr<Acceptor> acceptor_;   // from Serve on
};

}  // namespace gradwire::server

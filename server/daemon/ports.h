// The addresses that the daemon listens on: who may connect, and how connections reach gRPC.
#pragma once

#include <grpcpp/server_builder.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "server/daemon/options.h"
#include "server/daemon/ticker.h"
#include "server/net/acceptor.h"
#include "server/net/certificate_store.h"

namespace gradwire::server {

// Open, AddTo, Serve, Stop: in this order, each once.
class Ports {
 public:
  // Listens, and reads the certificates. Connections wait.
  static absl::StatusOr<std::unique_ptr<Ports>> Open(const ServerOptions& options,
                                                     int max_connections);
  ~Ports() { Stop(); }
  Ports(const Ports&) = delete;
  Ports& operator=(const Ports&) = delete;

  // Tells gRPC where its connections come from. The daemon accepts them itself: gRPC can neither
  // limit their number nor recognize an offer of memory.
  void AddTo(grpc::ServerBuilder& builder);

  // Lets connections in; gRPC's server has started. `take_offer`: see Acceptor.
  absl::Status Serve(Acceptor::OfferHandler take_offer);

  // Lets no further ones in.
  void Stop();

  // With the ports that were taken.
  const std::vector<std::string>& addresses() const { return addresses_; }
  int connections() const { return acceptor_ == nullptr ? 0 : acceptor_->connections(); }
  // However many join at once, most connections are left for those that members cannot do without.
  bool HasRoom() const { return connections() <= max_connections_ / 4; }

 private:
  using FromOutside = grpc::experimental::ExternalConnectionAcceptor;

  Ports(std::chrono::milliseconds first_byte_timeout, int max_connections)
      : first_byte_timeout_(first_byte_timeout), max_connections_(max_connections) {}

  void ReloadCertificates();

  const std::chrono::milliseconds first_byte_timeout_;
  const int max_connections_;
  std::vector<Listener> listeners_;  // until Serve
  std::vector<std::string> addresses_;
  std::unordered_set<int> local_fds_;               // listeners on unix sockets
  std::shared_ptr<CertificateStore> certificates_;  // null: no TLS
  std::string reload_error_;                        // the reloader's: the last one that was logged
  // Each has credentials of its own: a unix socket needs no TLS.
  std::unique_ptr<FromOutside> local_;
  std::unique_ptr<FromOutside> tcp_;
  std::unique_ptr<Acceptor> acceptor_;  // from Serve on
  // A thread of its own, because reading a file may take long.
  std::optional<Ticker> reloader_;
};

}  // namespace gradwire::server

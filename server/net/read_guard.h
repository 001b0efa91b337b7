// Puts FrameGuard between connections and gRPC.
//
// gRPC 1.51 cannot be told how to read: it calls recvmsg and, with TLS, SSL_read. This program
// defines both, and close, in place of the libraries' ones, which they call. For descriptors that
// are not registered they add a look-up.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/sync.h"
#include "server/net/peer_address.h"

namespace gradwire::server {

// Nothing is set with TLS, where gRPC does not say whose bytes it decrypts.
struct GuardedPeer {
  std::optional<PeerAddress> address;
  std::optional<uid_t> user;  // of a unix socket
};

// Told of connections that sent what FrameGuard refuses. gRPC may hold connections for longer than
// their server exists.
class BreachListener {
 public:
  using OnBreach = std::function<void(const GuardedPeer& peer, const char* what)>;

  explicit BreachListener(OnBreach on_breach) : on_breach_(std::move(on_breach)) {}

  // Any thread: one of gRPC's, in the middle of a read.
  void Tell(const GuardedPeer& peer, const char* what) GRADWIRE_EXCLUDES(mutex_);
  // Waits for a Tell that runs; nothing is told from here on.
  void Close() GRADWIRE_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  OnBreach on_breach_ GRADWIRE_GUARDED_BY(mutex_);
};

struct ReadGuardOptions {
  std::size_t most_held = 0;  // see FrameGuard
  std::shared_ptr<BreachListener> listener;
};

// A connection without TLS, before gRPC has it and until it is closed. A breach disconnects it.
void GuardReads(int fd, const GuardedPeer& peer, const ReadGuardOptions& options);

// All connections with TLS whose server is in this process, from now on. gRPC ends them after a
// breach.
void GuardTlsReads(const ReadGuardOptions& options);

// Whether gRPC calls this program's functions. It does not where a library is linked in another
// order.
bool ReadsAreGuarded();

// Ends the connection at once; whoever reads from it gets an error.
void Disconnect(int fd);

}  // namespace gradwire::server

// The accept loop. gRPC's own stops for good once the process has run out of descriptors, and takes
// any number of silent connections; this one has a cap, resets what is above it, and recovers. On a
// unix socket it also tells members that offer shared memory from gRPC's connections, by the first
// byte that they send.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "server/net/listener.h"

namespace gradwire::server {

class Acceptor {
 public:
  // Takes over a new connection, non-blocking. Runs on the acceptor's thread.
  using Handler = std::function<void(int listener_fd, UniqueFd connection)>;
  // Takes over an offer of shared memory, whose bytes are there. Also on the acceptor's thread: it
  // must not map the memory there, for which every other connection would wait.
  using OfferHandler = std::function<void(UniqueFd connection)>;

  struct Options {
    // Each connection costs two descriptors: the handler's, and a duplicate by which its end is
    // noticed.
    int max_connections = 0;
    // For the first byte on a unix socket.
    std::chrono::milliseconds first_byte_timeout{3000};
  };

  static absl::StatusOr<std::unique_ptr<Acceptor>> Make(std::vector<Listener> listeners,
                                                        const Options& options, Handler handler,
                                                        OfferHandler offer_handler);
  ~Acceptor();

  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Begins to accept, on a thread of its own. Once.
  void Serve();

  // Closes the listening sockets and removes the unix ones' files. Connections stay with their
  // owner.
  void Stop();

  int max_connections() const { return max_connections_; }
  int connections() const { return connections_.load(std::memory_order_relaxed); }
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  // A connection on a unix socket that has said nothing yet.
  struct Silent {
    int listener_fd = -1;
    UniqueFd connection;
    Clock::time_point deadline;
  };

  Acceptor(std::vector<Listener> listeners, const Options& options, Handler handler,
           OfferHandler offer_handler);
  absl::Status Open();
  absl::Status WatchFd(int fd, std::uint32_t events);
  void OnEvent(int fd);
  void OnFirstByte(int fd);
  void CloseSilent(Clock::time_point now);
  void Run();
  void AcceptAll(const Listener& listener);
  void Take(const Listener& listener, UniqueFd connection);
  void HandOver(int listener_fd, UniqueFd connection);
  void RefuseOne(const Listener& listener);

  std::vector<Listener> listeners_;
  const int max_connections_;
  const std::chrono::milliseconds first_byte_timeout_;
  const Handler handler_;
  const OfferHandler offer_handler_;
  UniqueFd epoll_;
  UniqueFd stop_;
  UniqueFd reserve_;  // given up to accept, and reset, a connection when descriptors have run out
  std::unordered_map<int, UniqueFd> open_;  // duplicates of live connections
  std::unordered_map<int, Silent> silent_;  // by their descriptors; counted as connections
  std::atomic<int> connections_ = 0;
  std::atomic<std::uint64_t> refused_ = 0;
  std::thread thread_;
};

}  // namespace gradwire::server

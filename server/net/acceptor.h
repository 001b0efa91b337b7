// The accept loop. gRPC's own loop stops for good when the process runs out of descriptors, and it
// accepts any number of silent connections. This one limits connections, resets further ones, and
// recovers. On a unix socket it also distinguishes offers of shared memory from gRPC connections,
// by the first byte.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "server/net/intake.h"
#include "server/net/listener.h"
#include "server/net/local_users.h"

namespace gradwire::server {

class Acceptor {
 public:
  // Takes over a new connection, non-blocking. Runs on the acceptor's thread. `slot`: of the user,
  // on a unix socket, if there are `users`.
  using Handler =
      std::function<void(int listener_fd, std::optional<std::size_t> slot, UniqueFd connection)>;
  // Takes over an offer of shared memory whose bytes have arrived. It also runs on the acceptor's
  // thread, so it must not map memory: every other connection would wait.
  using OfferHandler = std::function<void(UniqueFd connection)>;

  struct Options {
    // Each connection costs two descriptors: the handler's, and a duplicate that detects its end.
    int max_connections = 0;
    // The time limit for the first byte on a unix socket, and for a TCP connection that waits until
    // its address may have one more.
    std::chrono::milliseconds first_byte_timeout{3000};
    // Checks TCP connections from their hand-over to their end. May be null; outlives the acceptor.
    Intake* intake = nullptr;
    // Counts users' connections on unix sockets. May be null; outlives the acceptor.
    LocalUsers* users = nullptr;
  };

  static absl::StatusOr<std::unique_ptr<Acceptor>> Make(std::vector<Listener> listeners,
                                                        const Options& options, Handler handler,
                                                        OfferHandler offer_handler);
  ~Acceptor();

  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Starts to accept on a separate thread. Call it once.
  void Serve();

  // Closes the listening sockets and removes the unix ones' files. Connections stay with their
  // owner.
  void Stop();

  int max_connections() const { return max_connections_; }
  int connections() const { return connections_.load(std::memory_order_relaxed); }
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  // That ended, or were closed, before their first call: Intake::Remove, and unix sockets without a
  // first byte.
  std::uint64_t without_call() const { return without_call_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  // Whose connection on a unix socket it is, if that is counted.
  struct User {
    uid_t id = 0;
    std::size_t slot = 0;
  };
  // A connection on a unix socket that has not sent anything yet.
  struct Silent {
    int listener_fd = -1;
    std::optional<User> user;
    UniqueFd connection;
    Clock::time_point deadline;
  };
  // Connections from one address that came too fast, in order; the intake says when the next one
  // may go on.
  struct Waiting {
    int listener_fd = -1;
    UniqueFd connection;
    Clock::time_point deadline;
  };

  struct Open {
    UniqueFd duplicate;
    std::optional<User> user;
  };

  Acceptor(std::vector<Listener> listeners, const Options& options, Handler handler,
           OfferHandler offer_handler);
  absl::Status Prepare();
  absl::Status WatchFd(int fd, std::uint32_t events);
  void OnEvent(int fd);
  void OnEnd(int fd, Open open);
  void Leave(const std::optional<User>& user);
  void OnFirstByte(int fd);
  void CloseSilent(Clock::time_point now);
  void Enter(int listener_fd, UniqueFd connection);
  void AdmitWaiting(Clock::time_point now);
  // For epoll_wait, until something has to be checked; -1: nothing has to.
  int WaitMs(Clock::time_point now) const;
  void Run();
  void AcceptAll(const Listener& listener);
  void Take(const Listener& listener, UniqueFd connection);
  void TakeLocal(const Listener& listener, UniqueFd connection);
  void HandOver(int listener_fd, const std::optional<User>& user, UniqueFd connection);
  void RefuseOne(const Listener& listener);

  std::vector<Listener> listeners_;
  const int max_connections_;
  const std::chrono::milliseconds first_byte_timeout_;
  Intake* const intake_;
  LocalUsers* const users_;
  const Handler handler_;
  const OfferHandler offer_handler_;
  UniqueFd epoll_;
  UniqueFd stop_;
  UniqueFd reserve_;  // given up to accept, and reset, a connection when descriptors have run out
  std::unordered_map<int, Open> open_;      // live connections, by their duplicates
  std::unordered_map<int, Silent> silent_;  // by their descriptors; counted as connections
  std::map<PeerAddress, std::deque<Waiting>> waiting_;  // counted too
  std::atomic<int> connections_ = 0;
  std::atomic<std::uint64_t> refused_ = 0;
  std::atomic<std::uint64_t> without_call_ = 0;
  std::thread thread_;
};

}  // namespace gradwire::server

// Hands connections to gRPC on threads of its own. gRPC reads a new connection on the thread that
// hands it over, for as long as its peer has something to read: the acceptor would accept no other,
// and the intake, which shares its thread, would cut none.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "base/sync.h"
#include "base/unique_fd.h"

namespace gradwire::server {

class HandOver {
 public:
  struct Connection {
    int listener_fd = -1;
    std::optional<std::size_t> slot;
    UniqueFd fd;
  };
  using Give = std::function<void(Connection connection)>;

  explicit HandOver(Give give);
  ~HandOver() { Stop(); }
  HandOver(const HandOver&) = delete;
  HandOver& operator=(const HandOver&) = delete;

  // Any thread. Not after Stop.
  void Add(Connection connection) GRADWIRE_EXCLUDES(mutex_);

  // Waits for what is being given, and closes the rest.
  void Stop() GRADWIRE_EXCLUDES(mutex_);

 private:
  void Run() GRADWIRE_EXCLUDES(mutex_);

  const Give give_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Connection> waiting_ GRADWIRE_GUARDED_BY(mutex_);
  bool stopped_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace gradwire::server

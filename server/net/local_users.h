// The users of this host who are connected over unix sockets.
//
// gRPC 1.51 does not say which unix connection a call came on. So each user has a slot, and the
// connections of a slot reach gRPC by a way of their own, which marks their calls (see
// rpc/user_credentials.h). gRPC wants all ways before it starts, so the number of slots is fixed.
//
// A slot may get another user when its last one has gone. A call that gRPC still held then would
// count as the new user's. Therefore the acceptor empties what ended connections have left in the
// kernel, and a slot rests for some time, in which gRPC's threads pass on what they have read.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::server {

// The user who opened the other end of a unix socket, as the kernel says. nullopt: `fd` is none.
std::optional<uid_t> PeerUser(int fd);

struct LocalUserLimits {
  std::size_t slots = 62;              // for users other than the daemon's own and root
  int connections = 0;                 // of each of them
  std::chrono::seconds slot_rest{10};  // from the end of a user's last connection
};

// For one thread, but for what SlotUsers returns.
class LocalUsers {
 public:
  using Clock = std::chrono::steady_clock;
  using SlotUser = std::shared_ptr<const std::atomic<uid_t>>;
  // Called for each refused connection, with a sentence for the log.
  using OnRefused = std::function<void(const std::string& sentence)>;

  // `own`: users who keep their slots and have no limit.
  LocalUsers(const LocalUserLimits& limits, const std::vector<uid_t>& own, OnRefused on_refused);

  // The user has one more connection. Its slot; nullopt: a limit is reached.
  std::optional<std::size_t> Enter(uid_t user, Clock::time_point now);
  // It has one less.
  void Leave(uid_t user, Clock::time_point now);

  // Whether the user's slot is never another's.
  bool KeepsSlot(uid_t user) const;

  // Whose each slot is, now and later. Any thread may read them.
  std::vector<SlotUser> SlotUsers() const;

 private:
  struct Slot {
    std::shared_ptr<std::atomic<uid_t>> user;
    bool own = false;
    bool used = false;  // has a user
    int connections = 0;
    Clock::time_point free_at{};  // without a connection: when another user may have it
  };

  Slot* Find(uid_t user);
  // A slot for a user who has none; null: there is none.
  Slot* Assign(uid_t user, Clock::time_point now);

  const LocalUserLimits limits_;
  const OnRefused on_refused_;
  std::vector<Slot> slots_;
};

}  // namespace gradwire::server

#include "server/net/local_users.h"

#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gradwire::server {
namespace {

// (uid_t)-1 is no user's: system calls take it for "no change".
constexpr uid_t kNobodys = static_cast<uid_t>(-1);

}  // namespace

std::optional<uid_t> PeerUser(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  // Of other sockets than unix ones, the kernel says pid 0 and kNobodys.
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid == kNobodys) {
    return std::nullopt;
  }
  return peer.uid;
}

LocalUsers::LocalUsers(const LocalUserLimits& limits, const std::vector<uid_t>& own,
                       OnRefused on_refused)
    : limits_(limits), on_refused_(std::move(on_refused)) {
  for (const uid_t user : own) {
    if (Find(user) != nullptr) continue;
    slots_.push_back(
        {.user = std::make_shared<std::atomic<uid_t>>(user), .own = true, .used = true});
  }
  for (std::size_t i = 0; i < limits_.slots; ++i) {
    slots_.push_back({.user = std::make_shared<std::atomic<uid_t>>(kNobodys)});
  }
}

LocalUsers::Slot* LocalUsers::Find(uid_t user) {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [user](const Slot& slot) {
    return slot.used && slot.user->load(std::memory_order_relaxed) == user;
  });
  return found == slots_.end() ? nullptr : &*found;
}

// A slot that had no user yet goes first; then the one that has been free for longest.
LocalUsers::Slot* LocalUsers::Assign(uid_t user, Clock::time_point now) {
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (slot.own || slot.connections > 0 || (slot.used && now < slot.free_at)) continue;
    if (best == nullptr || slot.free_at < best->free_at) best = &slot;
  }
  if (best == nullptr) return nullptr;
  best->used = true;
  best->user->store(user, std::memory_order_release);
  return best;
}

std::optional<std::size_t> LocalUsers::Enter(uid_t user, Clock::time_point now) {
  Slot* slot = Find(user);
  if (slot == nullptr) slot = Assign(user, now);
  if (slot == nullptr) {
    on_refused_(absl::StrCat("refused a connection of uid ", user, ": ", limits_.slots,
                             " other users are connected to unix sockets, or were within ",
                             limits_.slot_rest.count(), " s; allowed are ", limits_.slots));
    return std::nullopt;
  }
  if (!slot->own && slot->connections >= limits_.connections) {
    on_refused_(absl::StrCat("refused a connection of uid ", user, ": it has ", slot->connections,
                             "; allowed for one user are ", limits_.connections));
    return std::nullopt;
  }
  ++slot->connections;
  return static_cast<std::size_t>(slot - slots_.data());
}

void LocalUsers::Leave(uid_t user, Clock::time_point now) {
  Slot* const slot = Find(user);
  if (slot == nullptr) return;
  if (--slot->connections == 0) slot->free_at = now + limits_.slot_rest;
}

bool LocalUsers::KeepsSlot(uid_t user) const {
  return std::any_of(slots_.begin(), slots_.end(), [user](const Slot& slot) {
    return slot.own && slot.user->load(std::memory_order_relaxed) == user;
  });
}

std::vector<LocalUsers::SlotUser> LocalUsers::SlotUsers() const {
  std::vector<SlotUser> users;
  for (const Slot& slot : slots_) users.emplace_back(slot.user);
  return users;
}

}  // namespace gradwire::server

// What the user IDs mean that callers on unix sockets have.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace gradwire::server {

struct HostUsers {
  // Only the daemon's own user and root can open the sockets: their mode is 0600.
  bool sockets_are_private = true;
  // Who may do everything.
  std::vector<uid_t> operators = {};
  // What the kernel says of everybody who has no ID in the daemon's user namespace, and of the user
  // who really has this one. nullopt: all users have an ID.
  std::optional<uid_t> unknown = {};

  bool IsOperator(uid_t user) const;
};

// Of this process: its own user and root are operators. In a user namespace where its own user has
// the ID that others seem to have, its own user is one only if `sockets_are_private`.
HostUsers ReadHostUsers(bool sockets_are_private);

}  // namespace gradwire::server

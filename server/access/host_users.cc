#include "server/access/host_users.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

namespace gradwire::server {
namespace {

constexpr uid_t kOverflow = 65534;                               // the kernel's default
constexpr std::uint64_t kAllIds = (std::uint64_t{1} << 32) - 1;  // the last one is no user's

// Whether this process sees every user by an ID of their own.
bool SeesAllUsers() {
  std::ifstream map("/proc/self/uid_map");
  std::uint64_t inside = 0;
  std::uint64_t outside = 0;
  std::uint64_t count = 0;
  // Without user namespaces in the kernel there is no file, and all users are seen.
  if (!(map >> inside >> outside >> count)) return true;
  return inside == 0 && outside == 0 && count == kAllIds;
}

uid_t OverflowId() {
  std::ifstream file("/proc/sys/kernel/overflowuid");
  uid_t id = kOverflow;
  return file >> id ? id : kOverflow;
}

}  // namespace

bool HostUsers::IsOperator(uid_t user) const {
  return std::find(operators.begin(), operators.end(), user) != operators.end();
}

HostUsers ReadHostUsers(bool sockets_are_private) {
  HostUsers users{.sockets_are_private = sockets_are_private, .operators = {0}};
  if (!SeesAllUsers()) users.unknown = OverflowId();
  const uid_t own = geteuid();
  if (own != 0 && (sockets_are_private || own != users.unknown)) users.operators.push_back(own);
  return users;
}

}  // namespace gradwire::server

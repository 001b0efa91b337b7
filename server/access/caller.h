// Who calls, and what for.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace gradwire::server {

enum class Role {
  kMember,    // joins sessions
  kObserver,  // reads the status of sessions
  kOperator,  // may do everything
};

// Of all callers on unix sockets that this user of the host has connected: "uid:1000".
std::string LocalIdentity(uid_t user);

// What the connection and the token of a call prove. Where the daemon asks for no tokens, every
// caller is an operator.
struct Caller {
  // Names the caller in the log, and is the same in all calls of one member: those with another
  // identity cannot use its membership. Escaped, and at most kMaxIdentityBytes.
  std::string identity = "anybody";
  Role role = Role::kOperator;
  // Names of sessions; "*" at the end stands for any rest.
  std::vector<std::string> sessions = {"*"};

  // Whether it may know of, and act on, the session.
  bool Covers(const std::string& session) const;
};

inline constexpr std::size_t kMaxIdentityBytes = 512;

}  // namespace gradwire::server

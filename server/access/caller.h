// Who calls, and what for.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "server/access/quota_ledger.h"

namespace gradwire::server {

enum class Role {
  kMember,    // joins sessions
  kObserver,  // reads the status of sessions
  kOperator,  // may do everything
};

const char* Name(Role role);

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
  // The name and the quota of its token's line; empty: it came without a token.
  std::string token_name = {};
  std::optional<QuotaLimits> quota = {};
  // For the audit log: the name in its certificate, as it is, and its address; empty: none.
  std::string certificate = {};
  std::string peer = {};

  // For messages: the identity, with the name of the token's line.
  std::string shown() const;
  // Whether it may be on another host: it came over TCP, and not to a loopback address.
  bool comes_over_network() const;
  // Whose quota its uses count against: all callers with one token's name share it.
  QuotaHolder holder() const;
  // Whether it may know of, and act on, the session.
  bool Covers(const std::string& session) const;
};

inline constexpr std::size_t kMaxIdentityBytes = 512;

}  // namespace gradwire::server

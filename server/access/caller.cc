#include "server/access/caller.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gradwire::server {

std::string LocalIdentity(uid_t user) { return absl::StrCat("uid:", user); }

const char* Name(Role role) {
  switch (role) {
    case Role::kMember:
      return "member";
    case Role::kObserver:
      return "observer";
    case Role::kOperator:
      return "operator";
  }
  return "";
}

std::string Caller::shown() const {
  // Over TCP the identity begins with it.
  if (token_name.empty() || absl::StartsWith(identity, "token ")) return identity;
  return absl::StrCat(identity, " (", token_name, ")");
}

bool Caller::comes_over_network() const {
  return !peer.empty() && !absl::StartsWith(peer, "127.") && !absl::StartsWith(peer, "[::1]:");
}

QuotaHolder Caller::holder() const {
  return {.name = token_name.empty() ? identity : token_name, .own = quota};
}

bool Caller::Covers(const std::string& session) const {
  return std::any_of(sessions.begin(), sessions.end(), [&](absl::string_view pattern) {
    if (absl::ConsumeSuffix(&pattern, "*")) return absl::StartsWith(session, pattern);
    return session == pattern;
  });
}

}  // namespace gradwire::server

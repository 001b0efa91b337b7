// The tokens that let callers in.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/access/caller.h"

namespace gradwire::server {

// Of a user of this host, from the system's user database.
absl::StatusOr<uid_t> UserIdOf(const std::string& name);

// Holds digests of tokens only, and finds a token by its digest, so that the time of a lookup says
// nothing about the tokens. Immutable.
class TokenTable {
 public:
  // The ID of a user of this host; an error if there is no such user.
  using FindUserId = std::function<absl::StatusOr<uid_t>(const std::string& name)>;

  // One line for each token: name, role, sessions, token, with spaces between them, and if need be
  // the quota of all that have this name (ParseQuota), instead of the daemon's default.
  //
  //   # name   role      sessions          token                quota
  //   team-a   member    digits,team-a-*   sha256:9f86d081…     sessions=4,members=64
  //   grafana  observer  *                 correct-horse-battery-staple
  //   nightly  member    nightly-*         uid:1000
  //   build    member    build-*           user:jenkins
  //
  // Empty lines and those with '#' in front count for nothing. A token is itself, at least
  // kLeastTokenBytes printable characters, or "sha256:" and the 64 hexadecimal digits of its
  // digest. "uid:" and a number, or "user:" and a name that `find_user` knows, is no token, but a
  // user of this host, who needs none on a unix socket. Two lines may have one name, while a token
  // is replaced by another; all that is said beside the token must then be equal. InvalidArgument
  // names the line, and what is allowed, but shows no token. Unavailable: the system could not look
  // up a user, and may do so later.
  static absl::StatusOr<TokenTable> Parse(const std::string& text,
                                          const FindUserId& find_user = UserIdOf);

  // Null: nobody has this token.
  const Caller* Find(const std::string& token) const;

  // Null: no line is for this user of the host.
  const Caller* FindUser(uid_t user) const;

  // Of the lines.
  std::size_t size() const { return callers_.size() + users_.size(); }
  friend bool operator==(const TokenTable& a, const TokenTable& b) { return a.text_ == b.text_; }

 private:
  std::string text_;                       // the digest of what it was made from
  std::map<std::string, Caller> callers_;  // by the token's digest
  std::map<uid_t, Caller> users_;
};

// 32 bytes.
std::string Sha256(const std::string& text);

inline constexpr std::size_t kLeastTokenBytes = 16;
inline constexpr std::size_t kMostTokenBytes = 512;
inline constexpr std::size_t kMostTokens = 10'000;

}  // namespace gradwire::server

// The tokens that let callers in.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/access/caller.h"

namespace gradwire::server {

// Holds digests of tokens only, and finds a token by its digest, so that the time of a lookup says
// nothing about the tokens. Immutable.
class TokenTable {
 public:
  // One line for each token: name, role, sessions, token, with spaces between them, and if need be
  // the quota of all that have this name (ParseQuota), instead of the daemon's default.
  //
  //   # name   role      sessions          token                quota
  //   team-a   member    digits,team-a-*   sha256:9f86d081…     sessions=4,members=64
  //   grafana  observer  *                 correct-horse-battery-staple
  //
  // Empty lines and those with '#' in front count for nothing. A token is itself, at least
  // kLeastTokenBytes printable characters, or "sha256:" and the 64 hexadecimal digits of its
  // digest. Two lines may have one name, while a token is replaced by another; all that is said
  // beside the token must then be equal. InvalidArgument names the line, and what is allowed, but
  // shows no token.
  static absl::StatusOr<TokenTable> Parse(const std::string& text);

  // Null: nobody has this token.
  const Caller* Find(const std::string& token) const;

  std::size_t size() const { return callers_.size(); }
  friend bool operator==(const TokenTable& a, const TokenTable& b) { return a.text_ == b.text_; }

 private:
  std::string text_;                       // the digest of what it was made from
  std::map<std::string, Caller> callers_;  // by the token's digest
};

// 32 bytes.
std::string Sha256(const std::string& text);

inline constexpr std::size_t kLeastTokenBytes = 16;
inline constexpr std::size_t kMostTokenBytes = 512;
inline constexpr std::size_t kMostTokens = 10'000;

}  // namespace gradwire::server

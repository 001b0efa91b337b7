// Shows a member that a unix socket on its host is that of the daemon it has joined.
//
// The daemon draws a secret when it starts. With the answer to a join, which comes over the
// connection that the member trusts, it sends a key that it derives from the secret and the
// member's start id. On the unix socket the member sends random bytes, and only who has the secret
// or the key can answer with their HMAC. So a path that means another socket on the member's host,
// or in its container, is not mistaken for the daemon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gradwire::wire {

inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kLeastProbeBytes = 16;
inline constexpr std::size_t kMostProbeBytes = 64;

// HMAC-SHA256 of `probe` with `key`; empty if the system has no memory for it.
std::string ProofOf(const std::string& key, const std::string& probe);

// Whether both are proofs and equal, in a time that does not depend on where they differ.
bool SameProof(const std::string& a, const std::string& b);

// The daemon's side. Immutable, so thread-safe.
class ProofSecret {
 public:
  // An error is getrandom's.
  static absl::StatusOr<ProofSecret> Draw();

  // For the answer to a join.
  std::string KeyFor(std::uint64_t start_id) const;

  // InvalidArgument: `probe` has an unexpected size.
  absl::StatusOr<std::string> Answer(std::uint64_t start_id, const std::string& probe) const;

 private:
  explicit ProofSecret(std::string secret) : secret_(std::move(secret)) {}
  std::string secret_;
};

}  // namespace gradwire::wire

// What an identity, or a session, may use: "sessions=16,members=256,memory=2GiB".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/statusor.h"

namespace gradwire::server {

enum class QuotaKind : std::uint8_t {
  kSessions,  // that run or gather, of who began them
  kMembers,
  kMemory,   // bytes that sessions reserve
  kStreams,  // of members; a bulk lane counts too
  kJoins,    // per second
};
inline constexpr std::size_t kQuotaKinds = 5;
const char* Name(QuotaKind kind);

inline constexpr std::uint64_t kNoQuota = std::numeric_limits<std::uint64_t>::max();

// Immutable in use: a plain value.
struct QuotaLimits {
  std::uint64_t of(QuotaKind kind) const { return values[static_cast<std::size_t>(kind)]; }
  friend bool operator==(const QuotaLimits& a, const QuotaLimits& b) = default;

  std::array<std::uint64_t, kQuotaKinds> values = {kNoQuota, kNoQuota, kNoQuota, kNoQuota,
                                                   kNoQuota};
};

enum class QuotaOwner : std::uint8_t { kIdentity, kSession };

// Words with commas between them, each kind at most once; what is not named has no limit, and so
// has everything in an empty text. A session has no "sessions". InvalidArgument names the word, its
// value and what is allowed.
absl::StatusOr<QuotaLimits> ParseQuota(const std::string& text, QuotaOwner owner);

}  // namespace gradwire::server

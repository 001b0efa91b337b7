// Counts refused joins by the reason.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace gradwire::server {

// Thread-safe.
class JoinRefusals {
 public:
  struct Reason {
    absl::StatusCode code;
    const char* name;
  };
  // The last one stands for all other codes.
  static constexpr std::array<Reason, 6> kReasons = {{
      {absl::StatusCode::kInvalidArgument, "invalid_argument"},
      {absl::StatusCode::kPermissionDenied, "permission_denied"},
      {absl::StatusCode::kResourceExhausted, "resource_exhausted"},
      {absl::StatusCode::kAlreadyExists, "already_exists"},
      {absl::StatusCode::kUnavailable, "unavailable"},
      {absl::StatusCode::kUnknown, "other"},
  }};

  void Count(absl::StatusCode code) {
    std::size_t index = 0;
    while (index + 1 < kReasons.size() && kReasons[index].code != code) ++index;
    counts_[index].fetch_add(1, std::memory_order_relaxed);
  }
  std::uint64_t count(std::size_t index) const {
    return counts_[index].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<std::uint64_t>, kReasons.size()> counts_{};
};

}  // namespace gradwire::server

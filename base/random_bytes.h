// Random bytes from the kernel for values that must be unpredictable: tokens, lineages,
// attachments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gradwire {

// Fills all of `out`, or returns Internal with the system's error; then `out` must not be used.
// Thread-safe. Waits only while the kernel has not gathered its first entropy after a boot.
absl::Status FillRandom(std::span<std::byte> out);

absl::StatusOr<std::uint64_t> RandomNumber();

}  // namespace gradwire

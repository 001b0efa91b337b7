// Files that gradwirectl reads and writes.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "absl/status/statusor.h"

namespace gradwire::ctl {

// All of it, or the file stays what it was: a temporary file beside it takes its name.
absl::Status WriteFile(const std::string& path, const std::string& bytes);
// The error that WriteFile would give now.
absl::Status CheckWritable(const std::string& path);
// At most `most` bytes; a longer file is refused.
absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     std::size_t most = std::numeric_limits<std::size_t>::max());

}  // namespace gradwire::ctl

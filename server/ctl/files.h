// Files that gradwirectl reads and writes.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace gradwire::ctl {

// All of it, or the file stays what it was: a temporary file beside it takes its name.
absl::Status WriteFile(const std::string& path, const std::string& bytes);
// The error that WriteFile would give now.
absl::Status CheckWritable(const std::string& path);
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace gradwire::ctl

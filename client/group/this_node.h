// Which machine this process is on.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace gradwire::client {

// Equal for two processes whose GPUs NCCL connects directly: the machine since its last boot, and
// its name, which containers have of their own. An error says what could not be read.
absl::StatusOr<std::string> ThisNode();

}  // namespace gradwire::client

// Whether a frame belongs to this session.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/wire/frame.h"

namespace gradwire::server {

// InvalidArgument for a frame of another session of this name, or of an earlier life of the daemon:
// frames that change state carry the generation that their session's Welcome gave, and a delayed
// one must not count here. Frames without a generation pass.
absl::Status CheckGeneration(const wire::Header& header, std::uint64_t generation);

}  // namespace gradwire::server

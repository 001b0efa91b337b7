// What a member's stream may take, and how long.
#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace gradwire::server {

struct StreamLimits {
  std::size_t max_payload_bytes = 0;
  std::size_t max_queued_bytes = 0;  // of both lanes
  absl::Duration hello_timeout;      // also for the other lane
  absl::Duration close_timeout;
  // Of the bulk lane. The session takes care of the stream itself. A large frame may be long on its
  // way, and is heard when it is there.
  absl::Duration bulk_silence_timeout;
};

}  // namespace gradwire::server

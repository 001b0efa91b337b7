// What a member's stream may take, and how long.
#pragma once

#include <cstddef>

#include "absl/time/time.h"
#include "server/core/queue_limits.h"

namespace gradwire::server {

struct StreamLimits {
  std::size_t max_payload_bytes = 0;
  QueueLimits::Limits queue;     // of both lanes
  absl::Duration hello_timeout;  // also for the other lane
  absl::Duration close_timeout;
  // Where there are two lanes: each is heard for itself. Longer than the session's, which hears the
  // member. A large frame may be long on its way, and is heard when it is there.
  absl::Duration stream_silence_timeout;
  absl::Duration bulk_silence_timeout;
};

}  // namespace gradwire::server

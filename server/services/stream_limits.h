// Limits of size and time for a member's stream.
#pragma once

#include <cstddef>

#include "absl/time/time.h"
#include "server/core/queue_limits.h"

namespace gradwire::server {

struct ServerOptions;

struct StreamLimits {
  static StreamLimits Of(const ServerOptions& options);

  std::size_t max_payload_bytes = 0;
  QueueLimits::Limits queue;     // of both lanes
  absl::Duration hello_timeout;  // also for the other lane
  absl::Duration close_timeout;
  // With two lanes, the silence that each may have. It is longer than the session's limit for the
  // member, because a large frame counts only when it has arrived completely.
  absl::Duration stream_silence_timeout;
  absl::Duration bulk_silence_timeout;
};

}  // namespace gradwire::server

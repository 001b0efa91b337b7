#include "server/services/stream_limits.h"

#include <algorithm>

#include "base/limits.h"
#include "proto/wire/lanes.h"
#include "server/daemon/options.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kSmallFrames = std::size_t{1} << 20;
// Frames of about 300 bytes. A resume after results in place queues a frame for each chunk, so this
// covers 128 GiB of gradients in chunks of 1 MiB, and 8 GiB in chunks of 64 KiB.
constexpr std::size_t kMaxFrames = std::size_t{1} << 17;
// With a bulk lane, a frame on either lane is a sign of life for the core, so each lane has a limit
// of its own.
constexpr int kStreamSilences = 2;
}  // namespace

// Bounds the frames that only a member's queue holds: two windows of results that the member has
// acknowledged on an earlier stream, and one window of a broadcast. A member that keeps the
// protocol never has more.
StreamLimits StreamLimits::Of(const ServerOptions& options) {
  const std::size_t network_chunk = std::min(options.chunk_bytes, options.network_chunk_bytes);
  const std::size_t window = std::max(options.window_chunks * options.chunk_bytes,
                                      options.network_window_chunks * network_chunk);
  // A leaf's chunks depend on the model (MakeLeaf), and so does what it passes on of a broadcast
  // (Collectives): both are at most the largest chunk that there is.
  const bool leaf = options.is_leaf();
  const std::size_t broadcast = leaf ? kMaxChunkBytes : window;
  return {.max_payload_bytes = leaf ? kMaxChunkBytes : options.chunk_bytes,
          .queue = {.max_bytes =
                        window * 2 * std::size_t{options.open_buckets} + broadcast + kSmallFrames,
                    .max_frames = kMaxFrames},
          .hello_timeout = options.hello_timeout,
          .close_timeout = options.close_timeout,
          .stream_silence_timeout = kStreamSilences * options.silence_timeout,
          .bulk_silence_timeout = wire::kBulkSilences * options.silence_timeout};
}

}  // namespace gradwire::server

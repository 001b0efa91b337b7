#include "server/daemon/grpc_settings.h"

#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "base/limits.h"
#include "proto/wire/process_setup.h"

namespace gradwire::server {
namespace {

constexpr int kMiB = 1 << 20;
// A join carries the whole manifest, whatever the chunks' size.
constexpr std::size_t kLeastMessage = std::size_t{1} << 20;
constexpr std::size_t kMessageHeader = std::size_t{64} << 10;
// Exchange, Watch and a few calls: a member needs no more on one connection.
constexpr int kStreamsPerConnection = 16;
constexpr int kIdleConnectionMs = 5 * 60 * 1000;
constexpr int kLeastPingMs = 10 * 1000;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(
      std::clamp<std::int64_t>(absl::ToInt64Milliseconds(duration), 1, 1 << 30));
}

// What HTTP/2 lets a peer send ahead of what the daemon reads. gRPC grants 4 MiB, and twice the
// bandwidth-delay product where that is more: this is a link of 1 Gbit/s and 60 ms, or of loopback.
constexpr std::size_t kLookaheadBytes = std::size_t{16} * kMiB;

// A leaf's chunks depend on the model (MakeLeaf).
std::size_t MaxMessage(const ServerOptions& options) {
  const std::size_t chunk = options.is_leaf() ? kMaxChunkBytes : options.chunk_bytes;
  return std::max(chunk, kLeastMessage) + kMessageHeader;
}

// What a member's windows let it send before the daemon has read any of it.
std::size_t WindowBytes(const ServerOptions& options) {
  const std::size_t window = std::max(options.window_chunks * options.chunk_bytes,
                                      options.network_window_chunks * options.network_chunk_bytes);
  return options.open_buckets * window;
}

void SetArguments(const ServerOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(MaxMessage(options)));
  builder.SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  const std::pair<const char*, int> arguments[] = {
      // A megabyte of zeros, compressed, becomes a gigabyte before any limit is looked at.
      {GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0},
      {GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0},
      // A connection that never finishes its handshake would keep a descriptor.
      {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(options.handshake_timeout)},
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnection},
      {GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnectionMs},
      // Clients may ping without calls; one that pings more often than this gets GOAWAY
      // (too_many_pings).
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kLeastPingMs},
      {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
      // For chunks of a megabyte; measured, and the same on the members' side.
      {GRPC_ARG_TCP_READ_CHUNK_SIZE, kMiB},
      {GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 4 * kMiB},
      // Without the probe gRPC 1.51 leaves a connection's window at 64 KiB, whatever the stream's
      // is: 21 Mbit/s over 25 ms. It also sets windows and frame sizes, so other arguments for them
      // have no effect.
      {GRPC_ARG_HTTP2_BDP_PROBE, 1},
  };
  for (const auto& [name, value] : arguments) builder.AddChannelArgument(name, value);
}

}  // namespace

void SetUpGrpc(const ServerOptions& options, const MemoryShares& memory,
               grpc::ServerBuilder& builder) {
  wire::KeepGrpc();
  SetArguments(options, builder);
  grpc::ResourceQuota quota("gradwired");
  quota.Resize(memory.total());
  builder.SetResourceQuota(quota);
}

IntakeLimits IntakeLimitsOf(const ServerOptions& options, const MemoryShares& memory) {
  // A message that is read, one that has begun, and headers; members have no second stream that
  // carries payloads on one connection.
  return {.connection_bytes =
              std::max(kLookaheadBytes, WindowBytes(options)) + 2 * MaxMessage(options) + kMiB,
          .strangers_bytes = memory.transport / 2};
}

std::size_t AdminStrangersBytes(std::size_t strangers_bytes) {
  constexpr std::size_t kLeast = std::size_t{8} * kMiB;
  return std::max(strangers_bytes / 4, kLeast);
}

}  // namespace gradwire::server

// Several frames in one message of a stream.
//
// A message costs both sides system calls and wake-ups, whatever its size, so frames that wait
// together leave together. But a receiver has a message only when all of it has arrived: on a slow
// link a large one delays the sums that wait for its first frame. So a message takes no more than
// what arrives from the other side in 16 ms (ArrivalRate).
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/codec.h"

namespace gradwire::wire {

inline constexpr std::size_t kMaxBundleBytes = std::size_t{256} << 10;
inline constexpr std::size_t kMaxBundleFrames = 64;

// What a frame counts in a bundle. A header with lists may have any size up to its limit, and
// counts so much that the frame goes alone.
std::size_t BundleBytes(const Header& header, std::size_t payload_bytes);

// One message, of at least one serialized frame. A receiver handles them in order.
grpc::ByteBuffer Bundle(std::vector<grpc::ByteBuffer> frames);

// As Parse, for a message of one frame or several. InvalidArgument too if there are more than
// kMaxBundleFrames, or if together they exceed kMaxBundleBytes and one frame's limits.
absl::StatusOr<std::vector<Frame>> ParseBundle(const grpc::ByteBuffer& bytes,
                                               const ParseLimits& limits);

// How fast bytes arrive while they do: between pauses. Since both directions carry about the same
// (contributions and results), it says what the connection carries in the other one too.
//
// One thread calls Add at a time; Budget may be called on any.
class ArrivalRate {
 public:
  using Clock = std::chrono::steady_clock;

  void Add(std::size_t bytes, Clock::time_point now);

  // Bytes that a message should have at most: at least 1, which one frame may exceed.
  std::size_t Budget() const { return budget_.load(std::memory_order_relaxed); }

 private:
  Clock::time_point begin_{};  // of what is being measured
  Clock::time_point last_{};
  std::uint64_t bytes_ = 0;
  double per_second_ = 0;
  std::atomic<std::size_t> budget_ = 1;
};

}  // namespace gradwire::wire

// Frames to and from the bytes of gradwire.v1.Frame, without copying a payload of any size that
// matters. The bytes are ordinary protobuf: any client's generated code reads and writes them.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/wire/frame.h"

namespace gradwire::wire {

struct ParseLimits {
  std::size_t max_payload_bytes = std::size_t{4} << 20;
  std::size_t max_header_bytes = std::size_t{256} << 10;
};

// The payload refers to the received slices and keeps them. It is copied only when the payload does
// not follow the header in one piece, which this codec never writes.
//
// Whatever the bytes are, the worst that happens is InvalidArgument, which names the field, the
// value and what is allowed. Sizes are checked against the limits and against what is there before
// memory is taken. The values are checked one by one (known enumerators, indices within range);
// whether they make sense in a session is for the caller to find out.
absl::StatusOr<Frame> Parse(const grpc::ByteBuffer& bytes, const ParseLimits& limits);

// The slices refer to the payload's memory and keep the payload until gRPC drops them, on whichever
// thread that happens, possibly long after the write is done. Payloads of up to kCopyBytes are
// copied behind the header: one small slice is cheaper than two.
//
// payload: null or at most 2 GiB.
grpc::ByteBuffer Serialize(const Header& header, const PayloadRef& payload);

inline constexpr std::size_t kCopyBytes = 4096;

// Gives what Serialize made its Frame.after; only compressed bytes could not be given one. The
// slices behind stay shared with other copies.
void PutAfter(grpc::ByteBuffer& frame, std::uint64_t after);

}  // namespace gradwire::wire

// A frame that waits in a member's queue, by reference.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "proto/wire/frame.h"
#include "proto/wire/send_priority.h"
#include "server/core/effects.h"
#include "server/core/reduced_result.h"

namespace gradwire::server {

class Outgoing {
 public:
  // `keeper` expires when the session no longer keeps the payload; empty: it never did.
  Outgoing(wire::Header header, wire::PayloadRef payload, Keeper keeper = {});
  // A result, in the way in which it reaches this member.
  Outgoing(wire::Result header, const ResultRef& result, ResultDelivery delivery);

  const wire::Header& header() const { return header_; }
  const wire::SendPriority& priority() const { return priority_; }
  // What the frame will carry.
  std::size_t payload_bytes() const;
  // Bytes of the daemon's memory to which this frame refers: not those of a copy, which is not made
  // yet.
  std::size_t held_bytes() const { return payload_ == nullptr ? 0 : payload_->bytes(); }
  // Whether nobody but queues holds them.
  bool only_queued() const { return keeper_.expired(); }

  // The frame as bytes, which refer to the payload; of a ResentCopy they are the copy. May take
  // long: call it without a lock. `after` as in wire::Frame.
  grpc::ByteBuffer Serialize(std::uint64_t after) const;

 private:
  wire::Header header_;
  wire::PayloadRef payload_;                  // null: none, or `copy_` makes it
  std::function<wire::PayloadRef()> copy_{};  // empty: none
  std::size_t copy_bytes_ = 0;
  wire::SendPriority priority_;
  Keeper keeper_;
};

}  // namespace gradwire::server

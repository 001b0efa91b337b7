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
  // `keeper` expires when the session drops the payload. Empty: the session never kept it.
  Outgoing(wire::Header header, wire::PayloadRef payload, Keeper keeper = {});
  // A result, delivered in the way that suits this member.
  Outgoing(wire::Result header, const ResultRef& result, ResultDelivery delivery);

  const wire::Header& header() const { return header_; }
  const wire::SendPriority& priority() const { return priority_; }
  // What the frame will carry.
  std::size_t payload_bytes() const;
  // Bytes of the daemon's memory to which this frame refers. A copy that is not yet made does not
  // count.
  std::size_t held_bytes() const { return payload_ == nullptr ? 0 : payload_->bytes(); }
  // Whether only queues hold these bytes.
  bool only_queued() const { return keeper_.expired(); }

  // Serializes the frame. The bytes refer to the payload, or, for a ResentCopy, contain the copy.
  // May take long: call it without a lock. `after` as in wire::Frame.
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

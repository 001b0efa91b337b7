#include "server/session/outgoing.h"

#include <utility>
#include <variant>

#include "proto/wire/codec.h"
#include "proto/wire/frame_priority.h"

namespace gradwire::server {

Outgoing::Outgoing(wire::Header header, wire::PayloadRef payload, Keeper keeper)
    : header_(std::move(header)),
      payload_(std::move(payload)),
      priority_(wire::PriorityOf(header_, payload_.get())),
      keeper_(std::move(keeper)) {}

Outgoing::Outgoing(wire::Result header, const ResultRef& result, ResultDelivery delivery)
    : keeper_(result) {
  // The result's size decides which frames it may pass, however it travels.
  priority_ = wire::PriorityOf(header, nullptr);
  priority_.bytes = result->bytes();
  if (const auto* block = std::get_if<InSharedBlock>(&delivery)) {
    header.shared = wire::SharedBytes{.offset = block->offset, .bytes = result->bytes()};
  } else if (std::holds_alternative<InPlace>(delivery)) {
    header.in_place = true;
  } else if (auto* copy = std::get_if<ResentCopy>(&delivery)) {
    copy_ = std::move(copy->make);
    copy_bytes_ = result->bytes();
  } else {
    payload_ = std::move(std::get<InFrame>(delivery).payload);
  }
  header_ = header;
}

std::size_t Outgoing::payload_bytes() const { return copy_ ? copy_bytes_ : held_bytes(); }

// Called when the write begins: only then is a result copied that must leave a member's memory.
grpc::ByteBuffer Outgoing::Serialize(std::uint64_t after) const {
  grpc::ByteBuffer bytes = wire::Serialize(header_, copy_ ? copy_() : payload_);
  if (after > 0) wire::PutAfter(bytes, after);
  return bytes;
}

}  // namespace gradwire::server

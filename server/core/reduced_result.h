// A chunk's result, as the session core keeps it, and how it reaches one member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <variant>

#include "proto/wire/frame.h"

namespace gradwire::server {

// How a result reaches one member. Which of them it is depends on the member and on the stream that
// it has now, so it is decided when the frame is queued.

// The frame carries the bytes, by reference.
struct InFrame {
  wire::PayloadRef payload;
};
// The member reads the bytes in the daemon's segment.
struct InSharedBlock {
  std::uint64_t offset = 0;
};
// The member has the bytes already: they lie where its contribution was.
struct InPlace {};
// The bytes lie in the member's memory, but the contribution came on an earlier stream, so the
// member does not know the place. The frame carries a copy. `make` makes the copy only when the
// frame is about to be written, so a backlog of such frames takes no memory. The bytes are still
// valid then, because a member does not overwrite a bucket whose results are missing.
struct ResentCopy {
  std::function<wire::PayloadRef()> make;
};
using ResultDelivery = std::variant<InFrame, InSharedBlock, InPlace, ResentCopy>;

// Who gets it.
struct Receiver {
  int rank = 0;
  std::uint64_t stream = 0;    // its current one
  bool shares_memory = false;  // it has mapped the daemon's segment
};

// Immutable and shared: the session keeps it until every member has acknowledged it, the members'
// queues keep what they have to send of it. Thread-safe.
class ReducedResult {
 public:
  virtual ~ReducedResult() = default;

  virtual std::size_t bytes() const = 0;  // in the segment's dtype
  virtual std::uint64_t digest() const = 0;
  // The bytes in the daemon's memory. Null: only members have them, each in place of its
  // contribution.
  virtual wire::PayloadRef kept() const = 0;
  virtual ResultDelivery DeliveryTo(const Receiver& to) const = 0;
};
using ResultRef = std::shared_ptr<const ReducedResult>;

// A result whose bytes only the daemon has.
class KeptResult final : public ReducedResult {
 public:
  explicit KeptResult(wire::PayloadRef payload) : payload_(std::move(payload)) {}
  static ResultRef Make(wire::PayloadRef payload) {
    return std::make_shared<const KeptResult>(std::move(payload));
  }

  std::size_t bytes() const override { return payload_->bytes(); }
  std::uint64_t digest() const override { return payload_->digest(); }
  wire::PayloadRef kept() const override { return payload_; }
  ResultDelivery DeliveryTo(const Receiver&) const override { return InFrame{payload_}; }

 private:
  const wire::PayloadRef payload_;
};

}  // namespace gradwire::server

// The bytes of a broadcast that passes through (MemberCollectives::BeginRelay), as they were given:
// those that not all members have. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "proto/wire/frame.h"

namespace gradwire::client {

class GivenBytes {
 public:
  void Add(wire::PayloadRef bytes);

  // Copies the bytes from `offset` on. They have been given, and are kept.
  void Read(std::uint64_t offset, std::span<std::byte> out) const;

  // Those before `offset` are not read again.
  void Drop(std::uint64_t offset);

  std::uint64_t kept_bytes() const { return end_ - begin_; }

 private:
  std::deque<wire::PayloadRef> kept_;
  std::uint64_t begin_ = 0;  // of kept_, in the broadcast
  std::uint64_t end_ = 0;
};

}  // namespace gradwire::client

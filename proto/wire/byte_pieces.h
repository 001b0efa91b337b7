// Bytes that travel in several frames, because a frame's payload is limited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/frame.h"

namespace gradwire::wire {

// Calls `send` with each piece of `whole` and its offset: `most` bytes at a time, in order.
void InPieces(std::vector<std::byte> whole, std::size_t most,
              const std::function<void(std::uint64_t offset, PayloadRef piece)>& send);

// The other side. Not thread-safe.
class PieceReader {
 public:
  // A piece from offset 0 begins anew, because a resume repeats what may be lost. InvalidArgument:
  // the piece does not follow the one before it, or goes beyond the end. The caller has checked
  // `bytes`, the size of the whole.
  absl::Status Add(std::uint64_t offset, std::uint64_t bytes, const Payload* piece);

  bool complete() const { return bytes_ > 0 && content_.size() == bytes_; }
  const std::vector<std::byte>& content() const { return content_; }
  std::vector<std::byte> Take();

 private:
  std::uint64_t bytes_ = 0;
  std::vector<std::byte> content_;
};

}  // namespace gradwire::wire

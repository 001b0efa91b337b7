#include "server/core/joined_chunks.h"

#include <algorithm>
#include <span>
#include <utility>

#include "proto/wire/owned_payload.h"

namespace gradwire::server {

void JoinedChunks::Begin(std::uint64_t bytes) {
  left_ = bytes;
  part_.clear();
}

std::size_t JoinedChunks::next_bytes() const {
  return static_cast<std::size_t>(std::min<std::uint64_t>(chunk_bytes_, left_));
}

void JoinedChunks::Take(wire::PayloadRef chunk, std::vector<wire::PayloadRef>& chunks) {
  left_ -= chunk->bytes();
  chunks.push_back(std::move(chunk));
}

std::vector<wire::PayloadRef> JoinedChunks::Add(const wire::PayloadRef& bytes) {
  std::vector<wire::PayloadRef> chunks;
  // Where both daemons have chunks of one size, nothing is copied.
  if (part_.empty() && left_ > 0 && bytes->bytes() == next_bytes()) {
    Take(bytes, chunks);
    return chunks;
  }
  for (std::span<const std::byte> piece : bytes->pieces()) {
    while (!piece.empty() && left_ > 0) {
      const std::size_t more = std::min(piece.size(), next_bytes() - part_.size());
      part_.insert(part_.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(more));
      piece = piece.subspan(more);
      if (part_.size() < next_bytes()) continue;
      Take(wire::OwnedPayload::Make(std::exchange(part_, {})), chunks);
    }
  }
  return chunks;
}

}  // namespace gradwire::server

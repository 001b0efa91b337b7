// A broadcast at a leaf: chunks of this daemon's size, made of the bytes that come from the root,
// whose chunks may have another size. Not thread-safe, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/wire/frame.h"

namespace gradwire::server {

class JoinedChunks {
 public:
  explicit JoinedChunks(std::size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  // So many bytes follow, and nothing is left of those before.
  void Begin(std::uint64_t bytes);

  // Returns the chunks that are whole with these bytes. All have `chunk_bytes`, except the last
  // one. Bytes beyond those that were announced are ignored.
  std::vector<wire::PayloadRef> Add(const wire::PayloadRef& bytes);

  // Of the chunk that is not whole.
  std::size_t held_bytes() const { return part_.size(); }

 private:
  std::size_t next_bytes() const;
  void Take(wire::PayloadRef chunk, std::vector<wire::PayloadRef>& chunks);

  std::size_t chunk_bytes_;
  std::uint64_t left_ = 0;  // bytes that are not in a whole chunk
  std::vector<std::byte> part_;
};

}  // namespace gradwire::server

// The member's side of shared memory with the daemon on its host: contributions in the member's
// segments, results over the contributions or in the daemon's segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/memory/gradient_memory.h"
#include "client/transport/event_queue.h"
#include "proto/wire/frame.h"
#include "proto/wire/memory_segment.h"

namespace gradwire::client {

// The shared memory of one stream. A resumed stream begins with new memory, because the daemon may
// still hold chunks of the old one. Only the thread inside the event queue's handler may use it.
class SharedMemory {
 public:
  struct Offer {
    std::string address;  // "unix:/path"
    std::string token;
    std::uint64_t start_id = 0;
    std::size_t block_bytes = 0;    // a chunk
    std::size_t staging_bytes = 0;  // what the daemon takes
  };

  // Waits for the daemon's answer until the deadline. After an error payloads travel in the stream.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Attach(const Offer& offer,
                                                              Clock::time_point deadline);

  // For the Hello.
  std::uint64_t attachment() const { return attachment_; }

  // Names a chunk until its result is here.
  struct Key {
    std::int64_t step = 0;
    std::uint32_t bucket = 0;
    std::uint32_t round = 0;
    std::uint32_t chunk = 0;
    bool operator<(const Key& other) const {
      return std::tie(step, bucket, round, chunk) <
             std::tie(other.step, other.bucket, other.round, other.chunk);
    }
  };
  static Key KeyOf(const wire::RoundId& id, std::uint32_t chunk) {
    return {.step = id.step, .bucket = id.bucket, .round = id.round, .chunk = chunk};
  }
  struct Block {
    std::span<std::byte> content;
    wire::SharedBytes where;
  };
  // Returns a block to encode a chunk in; none: all blocks are in use. The same key again replaces
  // the previous block.
  std::optional<Block> Take(const Key& key, std::size_t bytes);

  // Whether this memory lies in a segment of `gradients`, which are given to the daemon when they
  // are met first.
  bool Has(std::span<const std::byte> memory, const GradientMemory& gradients);

  // Where this chunk's part of the bucket lies there. None: it does not.
  // `wire_bytes`: what it would have in a frame.
  std::optional<wire::SharedBytes> Find(const Key& key, std::span<const std::byte> memory,
                                        const GradientMemory& gradients, bool takes_result,
                                        std::size_t wire_bytes);

  // The chunk's result is decoded: the daemon no longer reads or writes the block.
  void Release(const Key& key);

  // What a result's header points at. Null: raw gradients have become the result, where they lie.
  absl::StatusOr<wire::PayloadRef> Result(const wire::Result& result) const;

  // Of a chunk that is not released; 0: not in shared memory.
  std::size_t WireBytes(const Key& key) const;

 private:
  struct Given {
    std::shared_ptr<wire::MemorySegment> segment;
    std::optional<std::uint32_t> number;  // none: the daemon refused it
  };

  explicit SharedMemory(const Offer& offer) : offer_(offer) {}

  void GiveNew(const GradientMemory& gradients);
  // The segment's number and the offset.
  std::optional<std::pair<std::uint32_t, std::size_t>> Locate(
      std::span<const std::byte> memory) const;

  const Offer offer_;
  std::uint64_t attachment_ = 0;
  std::size_t stride_ = 0;
  std::shared_ptr<wire::MemorySegment> staging_;
  std::shared_ptr<wire::MemorySegment> results_;
  std::vector<std::size_t> free_;  // the block used last is taken first: it is in the cache
  struct Contribution {
    std::optional<std::size_t> block{};  // none: gradients
    wire::SharedBytes where;
    std::size_t wire_bytes = 0;
  };
  std::map<Key, Contribution> contributions_;
  std::vector<Given> given_;
  std::uint64_t given_version_ = 0;
};

}  // namespace gradwire::client

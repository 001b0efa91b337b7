// A pool of chunk buffers, used by the encoder and released by gRPC.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/sync.h"
#include "proto/wire/frame.h"

namespace gradwire::client {

// Thread-safe, because gRPC releases buffers on its own threads. Lives as long as any buffer.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  class Buffer;

  using Memory = std::shared_ptr<std::byte>;
  // Memory whose contents are whatever they are; null if there is none. Called on the thread of
  // Take.
  using Allocate = std::function<Memory(std::size_t bytes)>;

  // Keeps up to `keep` idle buffers of `buffer_bytes` each.
  static std::shared_ptr<BufferPool> Make(std::size_t buffer_bytes, std::size_t keep,
                                          Allocate allocate);

  // A payload of `bytes` bytes, to be filled before it is shared. Its memory returns to the pool
  // with the last reference. Null if `allocate` has none.
  std::shared_ptr<Buffer> Take(std::size_t bytes);

 private:
  BufferPool(std::size_t buffer_bytes, std::size_t keep, Allocate allocate);
  void GiveBack(Memory memory);

  const std::size_t buffer_bytes_;
  const std::size_t keep_;
  const Allocate allocate_;
  Mutex mutex_;
  std::vector<Memory> idle_ GRADWIRE_GUARDED_BY(mutex_);
};

class BufferPool::Buffer final : public wire::Payload {
 public:
  Buffer(std::shared_ptr<BufferPool> pool, Memory memory, std::size_t bytes);
  ~Buffer() override;

  std::span<std::byte> content() { return {memory_.get(), bytes_}; }

  std::span<const std::span<const std::byte>> pieces() const override { return {&piece_, 1}; }
  std::size_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<BufferPool> pool_;  // null: not of the pool's size, not kept
  Memory memory_;
  std::size_t bytes_;
  std::span<const std::byte> piece_;
};

}  // namespace gradwire::client

#include "client/runtime/buffer_pool.h"

#include <utility>

namespace gradwire::client {

std::shared_ptr<BufferPool> BufferPool::Make(std::size_t buffer_bytes, std::size_t keep,
                                             Allocate allocate) {
  return std::shared_ptr<BufferPool>(new BufferPool(buffer_bytes, keep, std::move(allocate)));
}

BufferPool::BufferPool(std::size_t buffer_bytes, std::size_t keep, Allocate allocate)
    : buffer_bytes_(buffer_bytes), keep_(keep), allocate_(std::move(allocate)) {}

// Buffers are not zeroed, and are kept for later chunks: fresh ones would cause a page fault for
// every 4 KiB.
std::shared_ptr<BufferPool::Buffer> BufferPool::Take(std::size_t bytes) {
  if (bytes > buffer_bytes_) {
    Memory memory = allocate_(bytes);
    return memory == nullptr ? nullptr
                             : std::make_shared<Buffer>(nullptr, std::move(memory), bytes);
  }
  Memory memory;
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      memory = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (memory == nullptr) memory = allocate_(buffer_bytes_);
  if (memory == nullptr) return nullptr;
  return std::make_shared<Buffer>(shared_from_this(), std::move(memory), bytes);
}

void BufferPool::GiveBack(Memory memory) {
  MutexLock lock(mutex_);
  if (idle_.size() < keep_) idle_.push_back(std::move(memory));
}

BufferPool::Buffer::Buffer(std::shared_ptr<BufferPool> pool, Memory memory, std::size_t bytes)
    : pool_(std::move(pool)),
      memory_(std::move(memory)),
      bytes_(bytes),
      piece_(memory_.get(), bytes) {}

BufferPool::Buffer::~Buffer() {
  if (pool_ != nullptr) pool_->GiveBack(std::move(memory_));
}

}  // namespace gradwire::client

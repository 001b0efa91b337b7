// The memory that sessions may make the daemon take, and what of it is promised to whom.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

namespace gradwire::server {

// Thread-safe; no lock is taken.
class MemoryBudget : public std::enable_shared_from_this<MemoryBudget> {
 public:
  // Bytes that are promised to whoever has it. They are free again when it is destroyed, so it
  // belongs into the object that takes the memory. Movable; not thread-safe.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept;
    Share& operator=(Share&& other) noexcept;
    ~Share();

    std::size_t bytes() const { return bytes_; }
    // Takes a part of it out, at most all of it.
    Share Split(std::size_t bytes);

   private:
    friend class MemoryBudget;
    Share(std::shared_ptr<MemoryBudget> budget, std::size_t bytes)
        : budget_(std::move(budget)), bytes_(bytes) {}

    std::shared_ptr<MemoryBudget> budget_;
    std::size_t bytes_ = 0;
  };

  explicit MemoryBudget(std::size_t limit) : limit_(limit) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // nullopt: so much is not free.
  std::optional<Share> Take(std::size_t bytes);

  std::size_t limit() const { return limit_; }
  std::size_t taken() const { return taken_.load(std::memory_order_relaxed); }

 private:
  const std::size_t limit_;
  std::atomic<std::size_t> taken_ = 0;
};

}  // namespace gradwire::server

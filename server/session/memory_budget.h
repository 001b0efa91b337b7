// The daemon's memory limit for sessions, and how much of it is reserved.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

namespace gradwire::server {

// Thread-safe; takes no lock.
class MemoryBudget : public std::enable_shared_from_this<MemoryBudget> {
 public:
  // A reservation. Its destructor returns the bytes, so the object that takes the memory should own
  // it. Movable; not thread-safe.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept;
    Share& operator=(Share&& other) noexcept;
    ~Share();

    std::size_t bytes() const { return bytes_; }
    // Splits off a part, at most all of it.
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

  // nullopt: there is not enough free.
  std::optional<Share> Take(std::size_t bytes);

  std::size_t limit() const { return limit_; }
  std::size_t taken() const { return taken_.load(std::memory_order_relaxed); }

 private:
  const std::size_t limit_;
  std::atomic<std::size_t> taken_ = 0;
};

}  // namespace gradwire::server

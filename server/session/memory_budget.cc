#include "server/session/memory_budget.h"

#include <algorithm>

namespace gradwire::server {

MemoryBudget::Share::Share(Share&& other) noexcept
    : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}

MemoryBudget::Share& MemoryBudget::Share::operator=(Share&& other) noexcept {
  std::swap(budget_, other.budget_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MemoryBudget::Share::~Share() {
  if (budget_ != nullptr) budget_->taken_.fetch_sub(bytes_, std::memory_order_relaxed);
}

MemoryBudget::Share MemoryBudget::Share::Split(std::size_t bytes) {
  const std::size_t part = std::min(bytes, bytes_);
  bytes_ -= part;
  return Share(budget_, part);
}

// Relaxed order suffices, because the counter guards no other data. A plain fetch_add could exceed
// the limit for a moment and make another session's join fail.
std::optional<MemoryBudget::Share> MemoryBudget::Take(std::size_t bytes) {
  std::size_t taken = taken_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_ - taken) return std::nullopt;
  } while (!taken_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
  return Share(shared_from_this(), bytes);
}

}  // namespace gradwire::server

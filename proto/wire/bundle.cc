#include "proto/wire/bundle.h"

#include <algorithm>
#include <variant>

namespace gradwire::wire {
namespace {

// What the last frame of a message may wait for its first one. With chunks of 64 KiB, windows of 16
// and four daemons on links of 100 Mbit/s a message is one frame; on links of 1 Gbit/s, several.
constexpr double kBundleSeconds = 0.016;
// Rates over less are those of buffers.
constexpr std::chrono::milliseconds kMeasured(10);
// Longer gaps are the trainer's computation.
constexpr std::chrono::milliseconds kPause(20);
// Weight of the latest measurement.
constexpr double kNew = 0.5;

// Of other headers, an upper bound.
constexpr std::size_t kHeaderBytes = 256;

bool HasLists(const Header& header) {
  return std::holds_alternative<Announce>(header) || std::holds_alternative<DrawPlan>(header) ||
         std::holds_alternative<GroupBucket>(header) || std::holds_alternative<GroupId>(header) ||
         std::holds_alternative<Restart>(header) || std::holds_alternative<Failure>(header) ||
         std::holds_alternative<Welcome>(header) || std::holds_alternative<Hello>(header) ||
         std::holds_alternative<LedgerAccount>(header) ||
         std::holds_alternative<LedgerTotal>(header) || std::holds_alternative<Missed>(header) ||
         std::holds_alternative<HandOverAnswer>(header);
}

}  // namespace

std::size_t BundleBytes(const Header& header, std::size_t payload_bytes) {
  return HasLists(header) ? kMaxBundleBytes : kHeaderBytes + payload_bytes;
}

void ArrivalRate::Add(std::size_t bytes, Clock::time_point now) {
  if (now - last_ > kPause) {
    // The bytes before the first time are those of an unknown duration.
    begin_ = last_ = now;
    bytes_ = 0;
    return;
  }
  last_ = now;
  bytes_ += bytes;
  if (now - begin_ < kMeasured) return;
  const std::chrono::duration<double> seconds = now - begin_;
  const double measured = static_cast<double>(bytes_) / seconds.count();
  per_second_ = per_second_ == 0 ? measured : kNew * measured + (1 - kNew) * per_second_;
  const auto budget = static_cast<std::size_t>(per_second_ * kBundleSeconds);
  budget_.store(std::clamp<std::size_t>(budget, 1, kMaxBundleBytes), std::memory_order_relaxed);
  begin_ = now;
  bytes_ = 0;
}

}  // namespace gradwire::wire

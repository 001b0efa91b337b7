#include "client/runtime/send_window.h"

#include <algorithm>

namespace gradwire::client {
namespace {

constexpr double kNewest = 1.0 / 8;  // of the mean

// Whether `chunk` of `id` tells that this one's result will not come: its step or round is over, or
// begins again, or a later chunk has its result.
bool Overtakes(const wire::RoundId& id, std::uint32_t chunk, const wire::RoundId& measured,
               std::uint32_t measured_chunk) {
  if (id.step != measured.step) return true;
  return id.bucket == measured.bucket && (id != measured || chunk > measured_chunk);
}

}  // namespace

std::uint32_t SendWindow::Chunks(std::uint32_t most) const {
  MutexLock lock(mutex_);
  const std::chrono::duration<double> target = kTarget;
  if (!seconds_per_chunk_ || *seconds_per_chunk_ * most <= target.count()) return most;
  const auto fits = static_cast<std::uint32_t>(target.count() / *seconds_per_chunk_);
  return std::max(std::min(kLeast, most), fits);
}

void SendWindow::Add(Duration waited, std::uint32_t chunks) {
  // No time makes the window smaller than the least one, and a long one, such as until a lost
  // member is back, should not count for many.
  constexpr std::chrono::duration<double> kMost = kTarget / kLeast;
  const double each = std::min(std::chrono::duration<double>(waited) / chunks, kMost).count();
  MutexLock lock(mutex_);
  const double before = seconds_per_chunk_.value_or(each);
  seconds_per_chunk_ = before + (each - before) * kNewest;
}

void ChunkTimes::Sent(const wire::Contribution& contribution, TimePoint now) {
  // A later chunk of the same round is no sign: the measured one may still be on its way.
  if (measured_ && !Overtakes(contribution.id, measured_->chunk, measured_->id, measured_->chunk)) {
    return;
  }
  const std::uint32_t past = contribution.chunk + 1;
  const std::uint32_t on_their_way = past - std::min(past, contribution.received);
  measured_ = Measured{
      .id = contribution.id,
      .chunk = contribution.chunk,
      .sent = now,
      .fills = on_their_way >= chunks() ? on_their_way : 0,
  };
}

void ChunkTimes::Received(const wire::Result& result, TimePoint now) {
  if (!measured_) return;
  if (result.id != measured_->id || result.chunk != measured_->chunk) {
    if (Overtakes(result.id, result.chunk, measured_->id, measured_->chunk)) measured_.reset();
    return;
  }
  const Duration time = now - measured_->sent;
  const std::uint32_t fills = measured_->fills;
  measured_.reset();
  if (++times_ > kMemory) {
    least_before_ = least_;
    least_ = Duration::max();
    times_ = 1;
  }
  least_ = std::min(least_, time);
  // Where fewer chunks are on their way than may be, the window is not what they wait for.
  if (fills > 0) window_->Add(time - std::min(least_, least_before_), fills);
}

void ChunkTimes::Reset() {
  measured_.reset();
  least_ = least_before_ = Duration::max();
  times_ = 0;
}

}  // namespace gradwire::client

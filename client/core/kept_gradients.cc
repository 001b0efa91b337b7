#include "client/core/kept_gradients.h"

#include <algorithm>

#include "base/mutants.h"

namespace gradwire::client {

template <class Function>
void KeptGradients::ForEachPlace(const Bucket& entry, Function function) {
  std::size_t at = 0;
  for (const TensorView& place : entry.places) {
    const std::size_t first = std::max(at, entry.begin);
    const std::size_t last = std::min(at + place.bytes(), entry.end);
    if (first < last) {
      function(static_cast<std::byte*>(place.data) + (first - at), last - first,
               first - entry.begin);
    }
    at += place.bytes();
  }
}

void KeptGradients::Keep(std::uint32_t id, const GradBucket& bucket, const Slice& slice) {
  Bucket& entry = buckets_.try_emplace(id, *device_).first->second;
  entry.places = bucket.runs();
  entry.bucket = bucket;
  const TensorView& buffer = bucket.buffer();
  const auto [first, last] = slice.Of(buffer.numel);
  entry.begin = first * ByteSize(buffer.dtype);
  entry.end = last * ByteSize(buffer.dtype);
  entry.kept.Resize(entry.end - entry.begin);
  ForEachPlace(entry, [&](const std::byte* place, std::size_t bytes, std::size_t at) {
    device_->Copy(entry.kept.data() + at, place, bytes);
  });
}

bool KeptGradients::Has(std::uint32_t id) const {
  const auto found = buckets_.find(id);
  return found != buckets_.end() && found->second.bucket.has_value();
}

absl::StatusOr<GradBucket*> KeptGradients::Again(std::uint32_t id) {
  Bucket& entry = buckets_.at(id);
  const TensorView before = entry.bucket->buffer();
  if (IsActive(Mutant::kReducedAgainFromResults)) {
    ForEachPlace(entry, [&](const std::byte* place, std::size_t bytes, std::size_t at) {
      device_->Copy(entry.kept.data() + at, place, bytes);
    });
  }
  entry.scratch.Resize(before.bytes());
  if (!entry.kept.empty()) {
    device_->Copy(entry.scratch.data() + entry.begin, entry.kept.data(), entry.kept.size());
  }
  absl::Status replaced = entry.bucket->set_buffer({.dtype = before.dtype,
                                                    .data = entry.scratch.data(),
                                                    .numel = before.numel,
                                                    .device = before.device});
  if (!replaced.ok()) return replaced;
  return &*entry.bucket;
}

void KeptGradients::GiveBack(std::uint32_t id) {
  Bucket& entry = buckets_.at(id);
  ForEachPlace(entry, [&](std::byte* place, std::size_t bytes, std::size_t at) {
    device_->Copy(place, entry.scratch.data() + entry.begin + at, bytes);
  });
}

// Buckets of steps before the last are not those of the next: DDP builds its buckets anew.
void KeptGradients::Clear() {
  std::erase_if(buckets_, [](const auto& one) { return !one.second.bucket; });
  for (auto& [id, entry] : buckets_) {
    entry.bucket.reset();
    entry.scratch = DeviceVector<std::byte>(*device_);
  }
}

}  // namespace gradwire::client

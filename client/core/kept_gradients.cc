#include "client/core/kept_gradients.h"

#include "base/mutants.h"

namespace gradwire::client {

void KeptGradients::Keep(std::uint32_t id, const GradBucket& bucket) {
  Bucket& entry = buckets_.try_emplace(id, *device_).first->second;
  entry.places = bucket.runs();
  entry.bucket = bucket;
  entry.kept.Resize(bucket.buffer().bytes());
  std::size_t at = 0;
  for (const TensorView& place : entry.places) {
    if (place.bytes() > 0) device_->Copy(entry.kept.data() + at, place.data, place.bytes());
    at += place.bytes();
  }
}

bool KeptGradients::Has(std::uint32_t id) const {
  const auto found = buckets_.find(id);
  return found != buckets_.end() && found->second.bucket.has_value();
}

absl::StatusOr<GradBucket*> KeptGradients::Again(std::uint32_t id) {
  Bucket& entry = buckets_.at(id);
  const TensorView& first = entry.places.front();
  if (IsActive(Mutant::kReducedAgainFromResults)) {
    for (std::size_t i = 0, at = 0; i < entry.places.size(); at += entry.places[i++].bytes()) {
      device_->Copy(entry.kept.data() + at, entry.places[i].data, entry.places[i].bytes());
    }
  }
  if (!entry.kept.empty()) entry.scratch.Assign(entry.kept.data(), entry.kept.size());
  absl::Status replaced =
      entry.bucket->set_buffer({.dtype = first.dtype,
                                .data = entry.scratch.data(),
                                .numel = entry.kept.size() / ByteSize(first.dtype),
                                .device = first.device});
  if (!replaced.ok()) return replaced;
  return &*entry.bucket;
}

void KeptGradients::GiveBack(std::uint32_t id) {
  Bucket& entry = buckets_.at(id);
  std::size_t at = 0;
  for (const TensorView& place : entry.places) {
    if (place.bytes() > 0) device_->Copy(place.data, entry.scratch.data() + at, place.bytes());
    at += place.bytes();
  }
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

#include "proto/wire/lanes.h"

#include <algorithm>

namespace gradwire::wire {

LaneOrder::Place LaneOrder::Next(const Weight& weight) {
  using Scope = Weight::Scope;
  const bool in_step = weight.scope == Scope::kBucket || weight.scope == Scope::kStep;
  const bool changes_step = in_step && weight.step != step_;
  if (changes_step && weight.step > step_) {
    step_ = weight.step;
    buckets_.clear();
  }
  Trail* const trail =
      weight.scope == Scope::kBucket && weight.step == step_ ? &buckets_[weight.bucket] : nullptr;
  const bool carries =
      weight.kind == Weight::Kind::kContribution || weight.kind == Weight::Kind::kResult;
  const bool large = carries && weight.bytes > kSmallPayload;
  if (trail != nullptr && large) trail->bulky = true;
  const bool bulky = large || (carries && trail != nullptr && trail->bulky);

  const bool fences = weight.scope == Scope::kAll || changes_step;
  Place place{.lane = bulky ? Lane::kBulk : Lane::kMain};
  const std::size_t other = Index(Other(place.lane));
  if (fences) {
    place.after = last_[other];
  } else if (trail != nullptr) {
    place.after = std::max(fence_[other], trail->last[other]);
  } else if (in_step) {
    place.after = fence_[other];
  }
  Count(place.lane);
  const std::uint64_t number = sent_[Index(place.lane)];
  if (weight.scope != Scope::kNone) last_[Index(place.lane)] = number;
  if (fences) fence_[Index(place.lane)] = number;
  if (trail != nullptr) trail->last[Index(place.lane)] = number;
  return place;
}

}  // namespace gradwire::wire

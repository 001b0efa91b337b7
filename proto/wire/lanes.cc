#include "proto/wire/lanes.h"

#include <algorithm>

namespace gradwire::wire {

LaneOrder::Place LaneOrder::Next(const Weight& weight) {
  using Scope = Weight::Scope;
  const bool in_step = weight.scope == Scope::kBucket || weight.scope == Scope::kStep;
  const bool begins_step = in_step && weight.step > step_;
  // It keeps its order with all others, those of its own step included.
  const bool bars = weight.scope == Scope::kAll || (in_step && weight.step < step_);
  if (begins_step) {
    step_ = weight.step;
    buckets_.clear();
  }
  if (begins_step || bars) fence_ = last_;
  Trail* const trail =
      weight.scope == Scope::kBucket && weight.step == step_ ? &buckets_[weight.bucket] : nullptr;
  const bool carries =
      weight.kind == Weight::Kind::kContribution || weight.kind == Weight::Kind::kResult;
  const bool large = carries && weight.bytes > kSmallPayload;
  if (trail != nullptr && large) trail->bulky = true;
  const bool bulky = large || (carries && trail != nullptr && trail->bulky);

  Place place{.lane = bulky ? Lane::kBulk : Lane::kMain};
  const std::size_t other = Index(Other(place.lane));
  if (weight.scope != Scope::kNone) place.after = fence_[other];
  if (trail != nullptr) place.after = std::max(place.after, trail->last[other]);
  Count(place.lane);
  const std::uint64_t number = sent_[Index(place.lane)];
  if (weight.scope != Scope::kNone) last_[Index(place.lane)] = number;
  if (bars) fence_[Index(place.lane)] = number;
  if (trail != nullptr) trail->last[Index(place.lane)] = number;
  return place;
}

}  // namespace gradwire::wire

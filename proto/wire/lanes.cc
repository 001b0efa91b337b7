#include "proto/wire/lanes.h"

#include <algorithm>

namespace gradwire::wire {

// Three rules decide what a frame follows on the other lane, each kept as the number of a frame:
//  1. Steps do not mix: the first frame of a step follows everything of the steps before, and so do
//     all after it (`fence_`).
//  2. A frame about the whole session, or one that is late from an earlier step, is such a border
//     too, to both sides: it follows all before it, and all later ones follow it.
//  3. Within a step a bucket's frames keep their order (`trail`): what a grant, a chunk or an
//     acknowledgement means depends on the bucket's frames before it. Other buckets' do not matter.
// A frame that is independent of all others (a heartbeat) follows nothing, and nothing follows it.
LaneOrder::Place LaneOrder::Next(const SendPriority& priority) {
  using Scope = SendPriority::Scope;
  using Kind = SendPriority::Kind;
  const bool in_step = priority.scope == Scope::kBucket || priority.scope == Scope::kStep;
  const bool begins_step = in_step && priority.step > step_;
  const bool is_border = priority.scope == Scope::kAll || (in_step && priority.step < step_);
  if (begins_step) {
    step_ = priority.step;
    buckets_.clear();
  }
  if (begins_step || is_border) fence_ = last_;
  Trail* const trail = priority.scope == Scope::kBucket && priority.step == step_
                           ? &buckets_[priority.bucket]
                           : nullptr;
  // The small last chunk of a large bucket stays on the bulk lane. On the main lane it would block
  // later frames until the large chunks before it have arrived on the bulk lane.
  const bool carries = priority.kind == Kind::kContribution || priority.kind == Kind::kResult;
  const bool large = carries && priority.bytes > kSmallPayload;
  if (trail != nullptr && large) trail->bulky = true;
  const bool bulky = large || (carries && trail != nullptr && trail->bulky);

  Place place{.lane = bulky ? Lane::kBulk : Lane::kMain};
  const std::size_t other = Index(Other(place.lane));
  if (priority.scope != Scope::kNone) place.after = fence_[other];
  if (trail != nullptr) place.after = std::max(place.after, trail->last[other]);
  Count(place.lane);
  const std::uint64_t number = sent_[Index(place.lane)];
  if (priority.scope != Scope::kNone) last_[Index(place.lane)] = number;
  if (is_border) fence_[Index(place.lane)] = number;
  if (trail != nullptr) trail->last[Index(place.lane)] = number;
  return place;
}

}  // namespace gradwire::wire

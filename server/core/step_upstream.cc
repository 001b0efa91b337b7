// What a step has to do with leaves, and a leaf's with the root's.
#include <utility>

#include "server/core/step.h"

namespace gradwire::server {

void Step::SetGroups(NodeGroups groups) {
  groups_.SetGroups(std::move(groups));
  for (int r = 0; r < options_.world_size; ++r) {
    if (membership_.IsElsewhere(r)) agreement_.SetElsewhere(r);
  }
  while (lead_ + 1 < options_.world_size && membership_.IsGone(lead_)) ++lead_;
}

// The root hears of a bucket from its sum, and of one that has none from here: of an empty one, and
// of all with the hook "noop".
void Step::TellUpstream(const Bucket& bucket, Effects& effects) const {
  if (!options_.leaf.is_leaf() || bucket.ChunkCount() > 0) return;
  effects.push_back(UpstreamEffect{
      .what = UpstreamEffect::What::kBucket, .step = number_, .parameters = bucket.parameters()});
}

void Step::AskUpstream(Effects& effects) const {
  if (!options_.leaf.is_leaf()) return;
  effects.push_back(UpstreamEffect{.what = UpstreamEffect::What::kEndStep, .step = number_});
}

// Only the answer to this step's question counts.
void Step::OnUpstreamConcluded(std::int64_t step, const UpstreamConclusion& conclusion,
                               Effects& effects) {
  if (step != number_ || !agreement_.prepared()) return;
  upstream_ = conclusion;
  agreement_.Decide(conclusion.verdict);
  MaybeConclude(effects);
}

}  // namespace gradwire::server

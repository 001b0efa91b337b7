// What a leaf's session has to do with the root's.
#include "server/core/collective_flow.h"
#include "server/core/session_core.h"
#include "server/core/step.h"

namespace gradwire::server {

// Members may have been lost meanwhile; then their successors' joins begin the session.
void SessionCore::UpstreamJoined(Effects& effects) {
  upstream_joined_ = true;
  if (state_ == State::kJoining) MaybeBegin(-1, effects);
}

void SessionCore::UpstreamConcluded(std::int64_t step, const UpstreamConclusion& conclusion,
                                    absl::Time now, Effects& effects) {
  if (state_ != State::kRunning) return;
  const std::size_t first = effects.size();
  const std::int64_t before = step_->number();
  step_->OnUpstreamConcluded(step, conclusion, effects);
  if (step_->number() != before) LetLeave(now, effects);
  Record(effects, first);
}

void SessionCore::UpstreamGoesOn(const UpstreamProgress& progress, absl::Time now,
                                 Effects& effects) {
  if (state_ == State::kRunning) Apply(collectives_->OnUpstream(progress, now, effects), effects);
}

void SessionCore::FailElsewhere(const absl::Status& status, int blamed_rank, Effects& effects) {
  Apply(FailureEvent{.kind = FailureEvent::Kind::kElsewhere,
                     .rank = membership_.IsRank(blamed_rank) ? blamed_rank : -1,
                     .what = status},
        effects);
}

}  // namespace gradwire::server

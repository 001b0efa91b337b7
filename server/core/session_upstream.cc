// What a leaf's session has to do with the root's.
#include "absl/strings/str_cat.h"
#include "server/core/collective_flow.h"
#include "server/core/session_core.h"
#include "server/core/step.h"

namespace gradwire::server {

// Members may have been lost meanwhile; then their successors' joins begin the session.
void SessionCore::UpstreamJoined(const UpstreamWelcome& welcome, Effects& effects) {
  upstream_welcome_ = welcome;
  if (state_ == State::kJoining) MaybeBegin(-1, effects);
}

// Behind a leaf that is new at the root all are.
void SessionCore::GoOnFromUpstream() {
  step_->GoOnFrom(upstream_welcome_->step, {}, 0);
  if (!upstream_welcome_->change) return;
  wire::MembershipChange change = *upstream_welcome_->change;
  change.collectives = collectives_->number();
  for (const int rank : membership_.Reachable()) newcomers_[rank] = change;
}

// Members hear of lost ones as the root's do, with the end of a step that is dropped. Here it ends
// like any other, with results that say nothing, so that no stream is closed.
void SessionCore::UpstreamConcluded(std::int64_t step, const UpstreamConclusion& conclusion,
                                    absl::Time now, Effects& effects) {
  if (state_ != State::kRunning) return;
  const std::size_t first = effects.size();
  const std::int64_t before = step_->number();
  UpstreamConclusion own = conclusion;
  if (own.change) own.change->collectives = collectives_->VoidOpen(effects);
  step_->OnUpstreamConcluded(step, own, effects);
  if (step_->number() != before) LetLeave(now, effects);
  Record(effects, first);
}

void SessionCore::UpstreamGoesOn(const UpstreamProgress& progress, absl::Time now,
                                 Effects& effects) {
  if (state_ == State::kRunning) Apply(collectives_->OnUpstream(progress, now, effects), effects);
}

// What ends the session on one shard, or behind a leaf, ends it on all, with the same words and the
// same blame (EndOfLeaf). A leaf whose own session has ended is a lost member, where it may have a
// successor: that it speaks for itself, and not for another shard, its blame shows.
MaybeFailure SessionCore::OnFailureElsewhere(int rank, const wire::Failure& failure,
                                             Effects& effects) {
  const bool is_leaf = membership_.IsLeaf(rank);
  if (options_.shard.count() == 1 && !is_leaf) {
    return ViolationOf(rank, absl::FailedPreconditionError("sent a failure"));
  }
  const int blamed = failure.blamed_rank;
  const bool is_own = is_leaf && blamed >= rank && blamed < rank + membership_.ranks(rank);
  const FailureEvent lost{
      .kind = FailureEvent::Kind::kLost,
      .rank = rank,
      .what = absl::AbortedError(absl::StrCat("with the session of its node: ", failure.message))};
  if (is_own && state_ == State::kRunning && MayReplace(lost)) {
    AwaitSuccessor(lost, effects);
    return std::nullopt;
  }
  const bool gathers = options_.gathers && options_.member_grace > absl::ZeroDuration();
  if (is_own && state_ == State::kJoining && gathers) return std::nullopt;  // its stream ends
  const bool known = failure.code > 0 && failure.code <= 16;
  return FailureEvent{.kind = FailureEvent::Kind::kElsewhere,
                      .rank = membership_.IsRank(blamed) ? blamed : -1,
                      .what = absl::Status(known ? static_cast<absl::StatusCode>(failure.code)
                                                 : absl::StatusCode::kUnknown,
                                           failure.message)};
}

void SessionCore::FailElsewhere(const absl::Status& status, int blamed_rank, Effects& effects) {
  Apply(FailureEvent{.kind = FailureEvent::Kind::kElsewhere,
                     .rank = membership_.IsRank(blamed_rank) ? blamed_rank : -1,
                     .what = status},
        effects);
}

}  // namespace gradwire::server

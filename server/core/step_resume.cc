// What a step does for a member that comes back on a new stream, or leaves, and after a pause.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "server/core/step.h"
#include "server/core/step_digests.h"

namespace gradwire::server {
namespace {

// A member that resumes may have frames of the step before in flight; anything older is a fault.
constexpr std::int64_t kStepsBehind = 1;

}  // namespace

// A member may know from the lead that this shard's step is concluded, and will say so.
absl::Status Step::CheckResumable(std::int64_t member_step) const {
  const bool ahead = !agreement_.leads() && agreement_.prepared() && member_step == number_ + 1;
  const auto behind = std::max(kStepsBehind, static_cast<std::int64_t>(last_done_.size()));
  const bool near = member_step <= number_ && member_step >= number_ - behind;
  if (near || ahead) return absl::OkStatus();
  return Coded(ErrorCode::kResume,
               absl::FailedPreconditionError(absl::StrCat("the member is at step ", member_step,
                                                          ", the session at step ", number_)));
}

void Step::GoOnFrom(std::int64_t number, std::vector<wire::StepDone> ended, std::uint64_t chain) {
  number_ = number;
  last_done_ = std::move(ended);
  digests_->GoOnFrom(number, chain);
  groups_.BeginStep(number);
}

std::optional<wire::Recovery> Step::RecoveryAt(std::int64_t member_step) const {
  std::optional<wire::Recovery> recovery = recovery_;
  if (recovery) recovery->chain = digests_->Before(member_step);
  return recovery;
}

// Only rounds of which no reduction has begun start over, with the new attempt (Bucket::Restart).
// The resumed member gets, in this order: Welcome, the results that it has not acknowledged, a
// missed StepDone, a missed StateReset, the shared state; then all get a Restart.
void Step::Resume(int rank, std::int64_t member_step,
                  const std::optional<wire::MembershipChange>& change, Effects& effects) {
  effects.push_back(LogEffect{.message = absl::StrCat("rank ", rank, " resumed in step ", number_),
                              .rank = rank});
  // Chunks of an earlier attempt are still on their way; CurrentBucket ignores them.
  ++attempt_;
  for (auto& [key, bucket] : table_.all()) {
    if (bucket.step() == number_) bucket.Restart(attempt_);
  }
  const auto send = [&](wire::Header header) {
    effects.push_back(SendEffect{.rank = rank, .frame = {.header = std::move(header)}});
  };
  // It was READY, so it holds all results. Before the Welcome, with which it forgets what it said
  // to another daemon.
  const auto send_missed = [&] {
    for (const wire::StepDone& done : last_done_) {
      if (done.step >= member_step && agreement_.leads()) send(done);
    }
  };
  if (outlives_daemon()) send_missed();
  std::optional<wire::NodeGroup> group;
  const bool weighted = groups_.groups().has_leaves() && !options_.leaf.is_leaf();
  if (groups_.groups().any() || weighted) group = groups_.groups().PlaceOf(rank);
  send(wire::Welcome{.step = member_step,
                     .attempt = attempt_,
                     .resumed = true,
                     .group = std::move(group),
                     .recovery = RecoveryAt(member_step),
                     .change = change});
  if (outlives_daemon()) records_.ledger.Repeat(rank, effects);
  groups_.Resume(rank, member_step, effects);
  for (auto& [key, bucket] : table_.all()) {
    // Its StepDone came after them.
    if (bucket.step() < member_step) flow_.AcknowledgeAll(rank, bucket);
    if (bucket.step() == number_) ResumeMissed(bucket, rank, effects);
    if (!bucket.IsMissedBy(rank)) flow_.Resend(rank, bucket, effects);
  }
  if (!outlives_daemon()) send_missed();
  if (member_step == number_ && agreement_.prepared() && !agreement_.alone()) {
    own_state_.Repeat(rank, effects);
    send(PreparedFrame());
  }
  if (shared_.IsReplacedFor(rank)) send(wire::StateReset{.iteration = hook_->iteration()});
  for (auto& [key, bucket] : table_.all()) {
    if (bucket.step() == number_ && bucket.is_open() && !bucket.reduced() &&
        bucket.IsGrantedTo(rank) && bucket.contributors().has(Index(rank)) &&
        !bucket.IsMissedBy(rank) && !IsActive(Mutant::kSharedStateNotResumed)) {
      if (!shared_.Send(bucket, rank, effects)) bucket.Revoke(rank);  // OnComputed grants it again
    }
  }
  SendRestarts(effects);
}

// Each member gets the open rounds for which it has a grant. A member whose announcement is still
// in flight gets a Grant later, after the shared state, without which it cannot encode.
void Step::SendRestarts(Effects& effects) {
  for (const int r : membership_.Reachable()) {
    wire::Restart restart{.step = number_, .attempt = attempt_};
    for (const auto& [key, bucket] : table_.all()) {
      if (bucket.step() != number_ || bucket.reduced()) continue;
      const bool sends = bucket.contributors().has(Index(r)) && !bucket.IsMissedBy(r);
      if (sends && bucket.IsGrantedTo(r)) restart.open.push_back(bucket.CurrentId());
    }
    effects.push_back(SendEffect{.rank = r, .frame = {.header = std::move(restart)}});
  }
}

// All that came while the gate was shut goes on, as if it came now.
void Step::Unpause(absl::Time now, Effects& effects) {
  const bool was_shut = gate_.shut();
  gate_.Lift(now);
  if (!was_shut) return;
  if (began_) began_ = now;
  for (auto& [key, bucket] : table_.all()) {
    if (bucket.step() != number_) continue;
    if (bucket.has_rounds() && !IsActive(Mutant::kPausedChunksForgotten))
      flow_.ReduceComplete(bucket, effects);
    Advance(bucket, effects);  // one without elements is over now
  }
  GrantNext(effects);
  MaybeConclude(effects);
}

void Step::Leave(int rank, Effects& effects) {
  for (auto& [key, bucket] : table_.all()) flow_.AcknowledgeAll(rank, bucket);
  DropHeld(effects);
}

void Step::ReduceWithoutLost(Effects& effects) {
  for (const auto& [key, bucket] : table_.all()) {
    if (bucket.has_rounds()) flow_.ReduceComplete(*table_.Find(key.first, key.second), effects);
  }
}

}  // namespace gradwire::server

// The end of a step: prepared, concluded, over.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "server/core/step.h"
#include "server/core/step_digests.h"

namespace gradwire::server {

MaybeFailure Step::OnEndStep(int rank, const wire::EndStep& end, absl::Time now, Effects& effects) {
  if (end.step == number_ - 1) return std::nullopt;
  if (end.step != number_) {
    return ViolationOf(rank, absl::FailedPreconditionError(absl::StrCat(
                                 "ended step ", end.step, "; the session is at step ", number_)));
  }
  if (HasEnded(rank)) return std::nullopt;  // a resume repeats it
  // Who leaves a prepared step has all of it.
  if (const auto gone = membership_.FirstLeft(); gone && !AwaitsConclusion()) {
    return LeftBeforeEnd(*gone, absl::StrCat("step ", number_));
  }
  AcknowledgeEarlierSteps(rank);
  Begin(rank, now);
  ended_[Index(rank)] = true;
  if (MaybeFailure failure = CheckEnded()) return failure;
  MaybeConclude(effects);
  return std::nullopt;
}

MaybeFailure Step::OnParameterDigest(int rank, const wire::ParameterDigest& digest,
                                     Effects& effects) {
  if (digest.step < number_) return std::nullopt;  // of a step that is over
  if (digest.step > number_) {
    return ViolationOf(rank, absl::FailedPreconditionError(
                                 absl::StrCat("sent a digest of its parameters in step ",
                                              digest.step, "; the session is at step ", number_)));
  }
  if (records_.drift.Take(rank, digest.digest) && options_.leaf.is_leaf()) {
    if (const auto value = records_.drift.ForRoot(membership_)) {
      effects.push_back(UpstreamEffect{
          .what = UpstreamEffect::What::kParameters, .step = number_, .digest = *value});
    }
  }
  return std::nullopt;
}

MaybeFailure Step::OnLedgerAccount(int rank, const wire::LedgerAccount& account, Effects& effects) {
  if (absl::Status status = records_.ledger.Take(rank, account, number_); !status.ok()) {
    return ViolationOf(rank, std::move(status));
  }
  records_.ledger.Settle(membership_, outlives_daemon(), effects);
  return std::nullopt;
}

// A member that ended the step must have announced every bucket of it.
MaybeFailure Step::CheckEnded() const {
  if (MaybeFailure failure = groups_.CheckEnded(ended_)) return failure;
  for (int r = 0; r < options_.world_size; ++r) {
    if (!HasEnded(r)) continue;
    for (const auto& [key, bucket] : table_.all()) {
      if (bucket.step() != number_ || bucket.IsAnnouncedBy(r)) continue;
      return ViolationOf(r, Coded(ErrorCode::kBucketsDiffer,
                                  absl::FailedPreconditionError(absl::StrCat(
                                      "ended step ", number_, " without bucket ", bucket.name(),
                                      ", which another member announced"))));
    }
  }
  return std::nullopt;
}

// Prepared: every announced bucket is reduced, and no further bucket can come, because all
// parameters are covered or all members have ended the step.
bool Step::IsPrepared() const {
  if (!began_ || gate_.shut()) return false;
  const BucketTable::Progress progress = table_.ProgressOf(number_);
  if (!progress.all_reduced) return false;
  for (const auto& [key, bucket] : table_.all()) {
    if (bucket.step() == number_ && bucket.HasMissedUngranted()) return false;
  }
  const bool all_parameters = parameters_ > 0 && progress.parameters == parameters_;
  return all_parameters || membership_.AllHere(EndedOrLate());
}

// A single daemon concludes as soon as the step is prepared, unless the session is to outlive it:
// nothing else has to wait until the members hold the results.
void Step::MaybeConclude(Effects& effects) {
  if (!IsPrepared()) return;
  const bool first = !agreement_.prepared();
  if (first) records_.late.OnPrepared(gate_.OpenFor(*began_, records_.late.now()));
  agreement_.Prepare(blame_.skips() ? Verdict::kSkip : Verdict::kApply);
  if (first) AskUpstream(effects);
  if (first && !agreement_.alone()) {
    if (outlives_daemon()) {
      own_state_.Prepare(number_, *agreement_.prepared(), membership_.Reachable(), effects);
    }
    effects.push_back(
        FanOutEffect{.ranks = membership_.Reachable(), .frame = {.header = PreparedFrame()}});
    if (hook_ != nullptr && IsActive(Mutant::kStateBeforeConclusion)) {
      hook_->EndStep(*agreement_.prepared());
    }
  }
  if (const auto verdict = agreement_.decided()) Conclude(*verdict, effects);
}

// Members of a leaf contribute to the root's step as one, which the root names.
std::string Step::SkipReason() const {
  return options_.leaf.is_leaf() ? upstream_.reason : blame_.Sentence(membership_);
}

// Residuals and factors change with the verdict only, the same for all: a skipped step leaves them.
void Step::Conclude(Verdict verdict, Effects& effects) {
  const std::string drift = records_.drift.EndStep(number_, membership_, effects);
  last_done_ = {{.step = number_,
                 .attempt = attempt_,
                 .verdict = verdict,
                 .digest = agreement_.alone() ? ResultsDigest() : agreement_.digest(),
                 .dropped = upstream_.change.has_value(),
                 .change = upstream_.change,
                 .reason = verdict == Verdict::kSkip ? SkipReason() : "",
                 .drift = drift.empty() ? upstream_.drift : drift}};
  if (verdict == Verdict::kSkip) {
    const std::string& why = last_done_.back().reason;
    last_skip_ = absl::StrCat("step ", number_, why.empty() ? "" : ": ", why);
  }
  if (agreement_.leads()) {
    digests_->Conclude(last_done_.back());
    effects.push_back(
        FanOutEffect{.ranks = membership_.Reachable(), .frame = {.header = last_done_.back()}});
  }
  const bool changed = !agreement_.alone() && IsActive(Mutant::kStateBeforeConclusion);
  if (hook_ != nullptr && !changed) {
    hook_->EndStep(IsActive(Mutant::kCoordinatorCommitsSkips) ? Verdict::kApply : verdict);
    chores_.Begin(effects);
  }
  own_state_.Conclude(verdict);
  records_.ledger.Conclude(number_, verdict);
  records_.ledger.Settle(membership_, outlives_daemon(), effects);
  reports_.EndStep(table_, number_);
  if (verdict == Verdict::kApply) reports_.Log(hook_, table_, number_, effects);
  blame_.Log(number_, membership_, effects);
  ++(verdict == Verdict::kSkip ? flow_.stats().steps_skipped : flow_.stats().steps_applied);
  for (const auto& [key, bucket] : table_.all()) {
    if (bucket.step() != number_) continue;
    for (const int rank : bucket.Missed()) shared_.Has(rank, bucket);
  }
  records_.late.EndStep();
  table_.EndStep(number_);
  ++number_;
  agreement_.NextStep();
  gate_.OnStepEnd();
  groups_.BeginStep(number_);
  attempt_ = 0;
  blame_.Reset();
  upstream_ = {};
  began_.reset();
  chunks_ = 0;
  awaits_draw_plan_ = false;
  std::fill(ended_.begin(), ended_.end(), false);
  DropHeld(effects);
}

void Step::DropHeld(Effects& effects) {
  for (auto& shared : table_.CloseAcknowledged(number_)) {
    effects.push_back(ReleaseEffect{.memory = std::move(shared)});
  }
}

void Step::End() { unread_ = table_.Clear(); }

}  // namespace gradwire::server

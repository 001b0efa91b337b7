#include "server/core/gathering.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"

namespace gradwire::server {
namespace {

const char* Text(Verdict verdict) { return verdict == Verdict::kApply ? "APPLY" : "SKIP"; }

template <class... Parts>
absl::Status Contradiction(const Parts&... parts) {
  return Coded(ErrorCode::kResume, absl::FailedPreconditionError(absl::StrCat(
                                       "the members' reports after the loss of their daemon "
                                       "contradict each other: ",
                                       parts...)));
}

wire::StepDone Ended(std::int64_t step, Verdict verdict, std::uint64_t digest) {
  // Whoever lacks results of a step that was skipped may drop it.
  return {.step = step, .verdict = verdict, .digest = digest, .dropped = verdict == Verdict::kSkip};
}

}  // namespace

absl::Status Gathering::Check(const wire::MemberReport& report) const {
  if (IsActive(Mutant::kSessionKeyNotCompared)) return absl::OkStatus();
  if (report.session_key == session_key_ && report.lineage == lineage_) return absl::OkStatus();
  return Coded(ErrorCode::kResume,
               absl::PermissionDeniedError(
                   "report.session_key: is that of another session; allowed: what the daemon gave "
                   "the members of this one"));
}

void Gathering::Take(int rank, wire::MemberReport report) {
  reports_[static_cast<std::size_t>(rank)] = std::move(report);
}

absl::StatusOr<Gathering::Outcome> Gathering::Decide() const {
  const auto by_step = [](const auto& a, const auto& b) { return a.step < b.step; };
  const auto [first, last] = std::minmax_element(reports_.begin(), reports_.end(), by_step);
  if (last->step - first->step > 1) {
    return Contradiction("rank ", first - reports_.begin(), " is in step ", first->step, ", rank ",
                         last - reports_.begin(), " in step ", last->step);
  }
  absl::StatusOr<Outcome> outcome =
      first->step == last->step ? DecideTogether(first->step) : FollowThoseAhead(first->step);
  if (!outcome.ok()) return outcome;
  if (absl::Status status = DecideCollectives(*outcome); !status.ok()) return status;
  return outcome;
}

// Some have seen `step` end; the others have not.
absl::StatusOr<Gathering::Outcome> Gathering::FollowThoseAhead(std::int64_t step) const {
  const auto ahead = std::find_if(reports_.begin(), reports_.end(),
                                  [&](const auto& report) { return report.step > step; });
  const auto leader = ahead - reports_.begin();
  if (!ahead->last) return Contradiction("rank ", leader, " cannot say how step ", step, " ended");
  std::uint64_t digest = 0;
  for (std::size_t rank = 0; rank < reports_.size(); ++rank) {
    const wire::MemberReport& report = reports_[rank];
    if (report.step > step && report.last != ahead->last) {
      return Contradiction("step ", step, " ended with ", Text(*ahead->last), " for rank ", leader,
                           ", and not for rank ", rank);
    }
    if (report.step > step) continue;
    const bool agrees = report.ready && report.ready->verdict == *ahead->last;
    if (*ahead->last == Verdict::kApply && !agrees) {
      return Contradiction("step ", step, " was applied by rank ", leader, ", and rank ", rank,
                           report.ready ? " has results that skip it" : " lacks its results");
    }
    if (agrees) digest = report.ready->digest;
  }
  return Outcome{.step = step + 1, .ended = Ended(step, *ahead->last, digest)};
}

absl::StatusOr<Gathering::Outcome> Gathering::DecideTogether(std::int64_t step) const {
  Outcome outcome{.step = step};
  const std::optional<wire::MemberReport::Readiness>& said = reports_.front().ready;
  bool all_ready = true;
  bool all_contributed = true;
  bool any_results = false;
  for (const wire::MemberReport& report : reports_) {
    all_ready &= report.ready.has_value();
    all_contributed &= report.has_contributed;
    any_results |= report.may_have_results || report.ready.has_value();
  }
  // There is no result of a sum that lacks a contribution, whatever a member fears.
  any_results &= all_contributed;
  if (IsActive(Mutant::kReadyOfOneConcludes)) all_ready = any_results && said.has_value();
  if (all_ready) {
    for (std::size_t rank = 1; rank < reports_.size(); ++rank) {
      if (reports_[rank].ready == said || !reports_[rank].ready) continue;
      return Contradiction("in step ", step, " rank 0 is READY with ", Text(said->verdict),
                           " and digest ", said->digest, "; rank ", rank, " with ",
                           Text(reports_[rank].ready->verdict), " and ",
                           reports_[rank].ready->digest);
    }
    outcome.ended = Ended(step, said->verdict, said->digest);
  } else if (any_results && !IsActive(Mutant::kStepWithResultsGoesOn)) {
    outcome.ended = Ended(step, Verdict::kSkip, 0);
  }
  if (outcome.ended) ++outcome.step;
  return outcome;
}

// The open one begins anew for those who are in it. Who has seen its end has all of it, and has
// only to wait for them: the root of a broadcast is never among these while a member lacks bytes.
absl::Status Gathering::DecideCollectives(Outcome& outcome) const {
  const auto by_number = [](const auto& a, const auto& b) { return a.collectives < b.collectives; };
  const auto [first, last] = std::minmax_element(reports_.begin(), reports_.end(), by_number);
  if (last->collectives - first->collectives > 1) {
    return Contradiction("for rank ", first - reports_.begin(), " ", first->collectives,
                         " broadcasts and barriers are over, for rank ", last - reports_.begin(),
                         " ", last->collectives);
  }
  outcome.collectives = first->collectives;
  for (const wire::MemberReport& report : reports_) {
    outcome.through.push_back(report.collectives > first->collectives);
  }
  return absl::OkStatus();
}

}  // namespace gradwire::server

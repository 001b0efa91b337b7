#include "server/core/gathering.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

absl::Status NobodyKnows() {
  return Coded(ErrorCode::kResume,
               absl::FailedPreconditionError("all members that had the session's model are lost; "
                                             "begin again from a checkpoint"));
}

constexpr char kDaemonLost[] = "its daemon was lost, and not all members have its results";

wire::StepDone Ended(std::int64_t step, Verdict verdict, std::uint64_t digest,
                     const std::string& reason) {
  // Whoever lacks results of a step that was skipped may drop it.
  const bool skipped = verdict == Verdict::kSkip;
  return {.step = step,
          .verdict = verdict,
          .digest = digest,
          .dropped = skipped,
          .reason = skipped ? reason : ""};
}

// Of a step that members have seen skipped.
constexpr char kSeenByOthers[] = "other members saw it skipped, before the daemon was lost";

}  // namespace

absl::Status Gathering::Check(const wire::MemberReport& report) const {
  if (IsActive(Mutant::kSessionKeyNotCompared)) return absl::OkStatus();
  if (report.session_key == session_key_ && report.lineage == lineage_) return absl::OkStatus();
  return Coded(ErrorCode::kResume,
               absl::PermissionDeniedError(
                   "report.session_key: is that of another session; allowed: what the daemon gave "
                   "the members of this one"));
}

void Gathering::Take(int rank, std::optional<wire::MemberReport> report) {
  reports_[static_cast<std::size_t>(rank)] = std::move(report);
}

absl::StatusOr<Gathering::Outcome> Gathering::Decide() const {
  Reporters all;
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    if (reports_[r]) all.push_back({.rank = static_cast<int>(r), .report = &*reports_[r]});
  }
  const auto by_step = [](const Reporter& a, const Reporter& b) {
    return a.report->step < b.report->step;
  };
  const auto [first, last] = std::minmax_element(all.begin(), all.end(), by_step);
  const std::int64_t step = first->report->step;
  const std::int64_t apart = last->report->step - step;
  if (apart > 2) {
    return Contradiction("rank ", first->rank, " is in step ", step, ", rank ", last->rank,
                         " in step ", last->report->step);
  }
  absl::StatusOr<Outcome> outcome = apart == 2   ? FollowThoseFarAhead(all, step)
                                    : apart == 1 ? FollowThoseAhead(all, step)
                                                 : DecideTogether(all, step);
  if (!outcome.ok()) return outcome;
  absl::Status status = DecideCollectives(all, *outcome);
  if (status.ok()) status = TakeIn(*outcome);
  if (!status.ok()) return status;
  outcome->ended.insert(outcome->ended.begin(), told_.begin(), told_.end());
  return outcome;
}

bool Gathering::AllNew() const {
  return std::none_of(reports_.begin(), reports_.end(),
                      [](const auto& report) { return report.has_value(); });
}

bool Gathering::HasNewcomers() const {
  return std::any_of(reports_.begin(), reports_.end(),
                     [](const auto& report) { return !report || report->newcomer; });
}

// Some have seen `step` end; the others have not.
absl::StatusOr<Gathering::Outcome> Gathering::FollowThoseAhead(const Reporters& all,
                                                               std::int64_t step) const {
  const auto ahead = std::find_if(all.begin(), all.end(),
                                  [&](const Reporter& one) { return one.report->step > step; });
  const int leader = ahead->rank;
  const std::optional<Verdict> last = ahead->report->last;
  if (!last) return Contradiction("rank ", leader, " cannot say how step ", step, " ended");
  std::uint64_t digest = 0;
  for (const auto& [rank, report] : all) {
    if (report->step > step && report->last != last) {
      return Contradiction("step ", step, " ended with ", Text(*last), " for rank ", leader,
                           ", and not for rank ", rank);
    }
    if (report->step > step) continue;
    const bool agrees = report->ready && report->ready->verdict == *last;
    if (*last == Verdict::kApply && !agrees) {
      return Contradiction("step ", step, " was applied by rank ", leader, ", and rank ", rank,
                           report->ready ? " has results that skip it" : " lacks its results");
    }
    if (agrees) digest = report->ready->digest;
  }
  return Outcome{.step = step + 1, .ended = {Ended(step, *last, digest, kSeenByOthers)}};
}

// Those have heard of newcomers: that `step` was concluded, as everybody was READY for, and that
// the next one was dropped.
absl::StatusOr<Gathering::Outcome> Gathering::FollowThoseFarAhead(const Reporters& all,
                                                                  std::int64_t step) const {
  std::optional<wire::MemberReport::Readiness> said;
  for (const auto& [rank, report] : all) {
    if (report->step == step && !report->ready) {
      return Contradiction("rank ", rank, " lacks results of step ", step,
                           ", after which others have been in two further ones");
    }
    if (report->step == step) said = report->ready;
    if (report->step == step + 2 && report->last != Verdict::kSkip) {
      return Contradiction("step ", step + 1, " was applied by rank ", rank,
                           ", and others have not been in it");
    }
  }
  return Outcome{.step = step + 2,
                 .ended = {Ended(step, said->verdict, said->digest, "its results are not finite"),
                           Ended(step + 1, Verdict::kSkip, 0, "a member was lost in it")}};
}

absl::StatusOr<Gathering::Outcome> Gathering::DecideTogether(const Reporters& all,
                                                             std::int64_t step) const {
  Outcome outcome{.step = step};
  const std::optional<wire::MemberReport::Readiness>& said = all.front().report->ready;
  bool all_ready = true;
  bool all_contributed = !HasNewcomers();
  bool any_results = false;
  for (const auto& [rank, report] : all) {
    all_ready &= report->ready.has_value();
    all_contributed &= report->has_contributed;
    any_results |= report->may_have_results || report->ready.has_value();
  }
  // There is no result of a sum that lacks a contribution, whatever a member fears.
  any_results &= all_contributed;
  if (IsActive(Mutant::kReadyOfOneConcludes)) all_ready = any_results && said.has_value();
  if (all_ready) {
    for (const auto& [rank, report] : all) {
      if (report->ready == said || !report->ready) continue;
      return Contradiction("in step ", step, " rank ", all.front().rank, " is READY with ",
                           Text(said->verdict), " and digest ", said->digest, "; rank ", rank,
                           " with ", Text(report->ready->verdict), " and ", report->ready->digest);
    }
    outcome.ended = {Ended(step, said->verdict, said->digest, "its results are not finite")};
  } else if (any_results && !IsActive(Mutant::kStepWithResultsGoesOn)) {
    outcome.ended = {Ended(step, Verdict::kSkip, 0, kDaemonLost)};
  }
  outcome.step += static_cast<std::int64_t>(outcome.ended.size());
  return outcome;
}

// The open one begins anew for those who are in it. Who has seen its end has all of it, and has
// only to wait for them: the root of a broadcast is never among these while a member lacks bytes.
// A newcomer is in none, so that all begin with a new one then.
absl::Status Gathering::DecideCollectives(const Reporters& all, Outcome& outcome) const {
  const auto by_number = [](const Reporter& a, const Reporter& b) {
    return a.report->collectives < b.report->collectives;
  };
  const auto [first, last] = std::minmax_element(all.begin(), all.end(), by_number);
  const std::uint64_t over = first->report->collectives;
  const std::uint64_t most = last->report->collectives;
  // Whoever has heard of newcomers may be two further.
  if (most - over > (HasNewcomers() ? 2 : 1)) {
    return Contradiction("for rank ", first->rank, " ", over,
                         " broadcasts and barriers are over, for rank ", last->rank, " ", most);
  }
  outcome.collectives = HasNewcomers() ? most + 1 : over;
  outcome.through.assign(reports_.size(), false);
  if (HasNewcomers()) return absl::OkStatus();
  for (const auto& [rank, report] : all) {
    outcome.through[static_cast<std::size_t>(rank)] = report->collectives > over;
  }
  return absl::OkStatus();
}

// Newcomers stay newcomers until a step is applied: they have no model to give, and are healed once
// more, because some members may not have heard that they need it.
absl::Status Gathering::TakeIn(Outcome& outcome) const {
  if (!HasNewcomers()) return absl::OkStatus();
  wire::MembershipChange change{.root = -1, .collectives = outcome.collectives};
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (!reports_[r]) outcome.fresh.push_back(rank);
    if (!reports_[r] || reports_[r]->newcomer) {
      change.newcomers.push_back(rank);
    } else if (change.root < 0) {
      change.root = rank;
    }
  }
  if (change.root < 0) return NobodyKnows();
  const bool is_told =
      told_change_ && std::ranges::includes(told_change_->newcomers, change.newcomers);
  if (is_told) {
    outcome.change = told_change_;
    outcome.collectives = told_change_->collectives;
    return absl::OkStatus();
  }
  outcome.ended.push_back(Ended(
      outcome.step, Verdict::kSkip, 0,
      absl::StrCat("lost members have successors: ranks ", absl::StrJoin(change.newcomers, ", "))));
  outcome.ended.back().change = change;
  outcome.change = std::move(change);
  ++outcome.step;
  return absl::OkStatus();
}

void Gathering::Tell(const Outcome& outcome) {
  for (std::optional<wire::MemberReport>& report : reports_) {
    for (std::size_t i = told_.size(); report && i < outcome.ended.size(); ++i) {
      const wire::StepDone& done = outcome.ended[i];
      if (report->step > done.step) continue;
      report->step = done.step + 1;
      report->last = done.verdict;
      report->has_contributed = report->may_have_results = false;
      report->ready.reset();
      report->newcomer &= done.verdict != Verdict::kApply;
      if (done.change) report->collectives = done.change->collectives;
    }
  }
  told_ = outcome.ended;
  told_change_ = outcome.change;
}

}  // namespace gradwire::server

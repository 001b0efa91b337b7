#include "server/core/gathering.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "proto/wire/rank_names.h"
#include "proto/wire/step_chain.h"
#include "server/core/gathering_words.h"

namespace gradwire::server {
namespace {

// Of a session whose processes here are these.
absl::Status NobodyKnows(const std::vector<int>& here) {
  return Coded(ErrorCode::kResume, absl::FailedPreconditionError(absl::StrCat(
                                       "all members that had the session's model are lost; ",
                                       wire::NewRanks(here), "; begin again from a checkpoint")));
}

constexpr char kMembersLost[] = "members were lost in it";
constexpr char kGroupsConnectAnew[] =
    "its daemon or a member was lost, and node groups had begun to add it up";
constexpr char kDaemonLost[] = "its daemon was lost, and not all members have its results";

}  // namespace

absl::Status Gathering::Check(const wire::MemberReport& report) const {
  if (IsActive(Mutant::kSessionKeyNotCompared)) return absl::OkStatus();
  if (report.session_key != session_key_ || report.lineage != lineage_) {
    return Coded(ErrorCode::kResume,
                 absl::PermissionDeniedError(
                     "report.session_key: is that of another session; allowed: what the daemon "
                     "gave the members of this one"));
  }
  if (report.arbiter == arbiter_ || follows_) return absl::OkStatus();
  return Coded(ErrorCode::kResume,
               absl::PermissionDeniedError(absl::StrCat(
                   "report.arbiter: is ", absl::Hex(report.arbiter, absl::kZeroPad16),
                   ", and this daemon's is ", absl::Hex(arbiter_, absl::kZeroPad16),
                   "; start it with --on-member-loss shrink and --arbiter, of the folder that the "
                   "session's earlier daemon had")));
}

void Gathering::Take(int rank, std::optional<wire::MemberReport> report) {
  left_[static_cast<std::size_t>(rank)] = report && CannotFollow(*report);
  if (report) Hear(*report, told_);
  reports_[static_cast<std::size_t>(rank)] = std::move(report);
  gone_[static_cast<std::size_t>(rank)] = false;
}

// As the member will report when it has heard of these.
void Gathering::Advance(wire::MemberReport& report, std::span<const wire::StepDone> ended) {
  for (const wire::StepDone& done : ended) {
    if (report.step > done.step) continue;
    wire::StepChain chain(report.step, report.chain);
    chain.Advance(done);
    report.chain = chain.Before(done.step + 1);
    report.step = done.step + 1;
    report.before_last = std::exchange(report.last, done.verdict);
    report.skipped = done.verdict == Verdict::kSkip ? report.skipped + 1 : 0;
    report.has_contributed = report.may_have_results = report.has_seen_results = false;
    // A newcomer that lacks results of a step lets the others apply it, and is one still.
    report.newcomer &= done.verdict != Verdict::kApply || !report.ready;
    report.ready.reset();
    if (!done.dropped && report.roster) report.concluded = report.roster->ranks;
    if (!done.change) continue;
    report.collectives = done.change->collectives;
    report.in_collective = false;
  }
}

// What it has said in a step that goes on is void, also if another one was lost since: members have
// said what they hold of the hook's state before that step.
void Gathering::Hear(wire::MemberReport& report, std::span<const wire::StepDone> ended) const {
  Advance(report, ended);
  if (report.step == told_step_) report.ready.reset();
}

absl::StatusOr<Gathering::Outcome> Gathering::Decide() const {
  // Newcomers decide nothing: they have applied nothing, and will get the model once more.
  Reporters all;
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    if (!reports_[r] || reports_[r]->newcomer) continue;
    all.push_back({.rank = static_cast<int>(r), .report = &*reports_[r]});
  }
  if (all.empty()) return NobodyKnows(ProcessesHere());
  if (follows_) return Follow(all);
  const wire::MemberReport* const latest = Latest();
  const auto by_step = [](const Reporter& a, const Reporter& b) {
    return a.report->step < b.report->step;
  };
  const auto [first, last] = std::minmax_element(all.begin(), all.end(), by_step);
  const std::int64_t step = first->report->step;
  const std::int64_t apart = last->report->step - step;
  if (apart > kMostMissed) {
    return Contradiction("rank ", first->rank, " is in step ", step, ", rank ", last->rank,
                         " in step ", last->report->step);
  }
  absl::StatusOr<Outcome> outcome = apart > 1    ? FollowThoseFarAhead(all, step, apart)
                                    : apart == 1 ? FollowThoseAhead(all, step)
                                                 : DecideTogether(all, step);
  if (!outcome.ok()) return outcome;
  if (IsHalfGathered(outcome->step)) {
    outcome->ended.push_back(Ended(outcome->step++, Verdict::kSkip, 0, kGroupsConnectAnew));
    outcome->again = false;
  }
  outcome->donor = all.front().rank;
  outcome->here = ProcessesHere();
  outcome->life = HighestLife() + 1;
  absl::Status status = DecideCollectives(*outcome);
  if (status.ok()) status = TakeIn(*outcome);
  if (!status.ok()) return status;
  const std::string differ = DecideChain(all, *outcome);
  if (!differ.empty()) return Contradiction(differ);
  if (shrinks_) {
    outcome->roster = wire::Roster{.number = 1 + (latest == nullptr ? 0 : latest->roster->number),
                                   .ranks = RanksHere()};
  }
  outcome->ended.insert(outcome->ended.begin(), told_.begin(), told_.end());
  return outcome;
}

// Shard 0 has welcomed them all, so that they are in one step. Newcomers have heard there that they
// are, and so have the others, with a step that was dropped.
absl::StatusOr<Gathering::Outcome> Gathering::Follow(const Reporters& all) const {
  const Reporter& first = all.front();
  for (const auto& [rank, report] : all) {
    if (report->step == first.report->step) continue;
    return Contradiction("rank ", first.rank, " was welcomed by shard 0 in step ",
                         first.report->step, ", rank ", rank, " in step ", report->step);
  }
  Outcome outcome{.step = first.report->step,
                  .here = ProcessesHere(),
                  .collectives = first.report->collectives,
                  .through = std::vector<bool>(reports_.size()),
                  .donor = first.rank,
                  .roster = first.report->roster};
  for (const auto& [rank, report] : all) {
    outcome.collectives = std::min(outcome.collectives, report->collectives);
  }
  wire::MembershipChange change{.root = first.rank, .collectives = outcome.collectives};
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    const auto& report = reports_[r];
    if (gone_[r]) continue;
    outcome.through[r] = report && report->collectives > outcome.collectives;
    if (report && !report->newcomer) continue;
    change.newcomers.push_back(static_cast<int>(r));
    if (!report) outcome.fresh.push_back(static_cast<int>(r));
  }
  if (!change.newcomers.empty()) outcome.change = std::move(change);
  return outcome;
}

bool Gathering::AllNew() const {
  return std::none_of(reports_.begin(), reports_.end(),
                      [](const auto& report) { return report.has_value(); });
}

bool Gathering::HasNewcomers() const {
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    if (!gone_[r] && (!reports_[r] || reports_[r]->newcomer)) return true;
  }
  return false;
}

// Also where some have begun the step, and others have not heard of the end of the one before.
// With newcomers, or another roster, it is dropped anyway, and that says so.
bool Gathering::IsHalfGathered(std::int64_t step) const {
  if (!is_grouped_ || HasNewcomers() || !CanGoOn(step)) return false;
  if (IsActive(Mutant::kGroupStepGoesOn)) return false;
  return std::ranges::any_of(reports_, [step](const auto& report) {
    return report && report->step == step && report->has_contributed;
  });
}

absl::StatusOr<Gathering::Outcome> Gathering::DecideTogether(const Reporters& all,
                                                             std::int64_t step) const {
  Outcome outcome{.step = step};
  const std::optional<wire::MemberReport::Readiness>& said = all.front().report->ready;
  bool all_ready = true;
  bool all_contributed = !HasNewcomers();
  bool any_results = false;
  bool any_lost = false;  // gradients, under results
  bool any_late = false;
  for (const auto& [rank, report] : all) {
    all_ready &= report->ready.has_value();
    all_contributed &= report->has_contributed;
    const bool has_results = report->may_have_results || report->ready;
    any_results |= has_results;
    any_lost |= has_results && !report->keeps_gradients;
    // Where the session shrinks, all keep their gradients but one that was late: others may have
    // results without it, and its trainer has not come to the bucket, or has given it away.
    any_late |= report->roster && report->may_have_results && !report->keeps_gradients;
  }
  // There is no result of a sum that lacks a contribution, whatever a member fears.
  any_results &= all_contributed;
  for (const auto& [rank, report] : all) {
    const std::optional<Verdict>& first = all.front().report->last;
    if (!first || !report->last || first == report->last) continue;
    return Contradiction("step ", step - 1, " ended with ", Text(*first), " for rank ",
                         all.front().rank, ", and not for rank ", rank);
  }
  if (IsActive(Mutant::kReadyOfOneConcludes)) all_ready = said.has_value();
  if (all_ready) {
    for (const auto& [rank, report] : all) {
      if (report->ready == said || !report->ready) continue;
      return Contradiction("in step ", step, " rank ", all.front().rank, " is READY with ",
                           Text(said->verdict), " and digest ", said->digest, "; rank ", rank,
                           " with ", Text(report->ready->verdict), " and ", report->ready->digest);
    }
    outcome.ended = {Ended(step, said->verdict, said->digest, "its results are not finite")};
  } else if (((any_results && any_lost) || any_late) && !IsActive(Mutant::kStepWithResultsGoesOn)) {
    outcome.ended = {Ended(step, Verdict::kSkip, 0, kDaemonLost)};
  } else {
    outcome.again = any_results;
  }
  outcome.step += static_cast<std::int64_t>(outcome.ended.size());
  return outcome;
}

// The open one begins anew for those who are in it. Who has seen its end has all of it, and has
// only to wait for them: the root of a broadcast is never among these while a member lacks bytes.
// A newcomer is in none, so that all begin with a new one then.
absl::Status Gathering::DecideCollectives(Outcome& outcome) const {
  Reporter first;
  Reporter last;
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    if (!reports_[r]) continue;
    const Reporter one{.rank = static_cast<int>(r), .report = &*reports_[r]};
    if (first.report == nullptr || one.report->collectives < first.report->collectives) first = one;
    if (last.report == nullptr || one.report->collectives >= last.report->collectives) last = one;
  }
  const std::uint64_t over = first.report->collectives;
  const std::uint64_t most = last.report->collectives;
  outcome.through.assign(reports_.size(), false);
  if (HasNewcomers() || !CanGoOn(outcome.step)) {
    outcome.collectives = most + 1;
    return absl::OkStatus();
  }
  if (most - over > 1) {
    return Contradiction("for rank ", first.rank, " ", over,
                         " broadcasts and barriers are over, for rank ", last.rank, " ", most);
  }
  outcome.collectives = over;
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    outcome.through[r] = reports_[r] && reports_[r]->collectives > over;
  }
  return absl::OkStatus();
}

// Newcomers stay newcomers until a step is applied: they have no model to give, and are healed once
// more, because some members may not have heard that they need it.
absl::Status Gathering::TakeIn(Outcome& outcome) const {
  // Once members have been told, they wait for each other to give and take the model.
  const auto as_told = [&] {
    outcome.change = told_change_;
    outcome.collectives = told_change_->collectives;
    return absl::OkStatus();
  };
  const bool may_be_told = told_change_ && told_ranks_ == RanksHere();
  if (!HasNewcomers() && (may_be_told || CanGoOn(outcome.step))) {
    return may_be_told ? as_told() : absl::OkStatus();
  }
  wire::MembershipChange change{.root = -1, .collectives = outcome.collectives};
  if (shrinks_) change.ranks = RanksHere();
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (gone_[r]) continue;
    if (!reports_[r]) outcome.fresh.push_back(rank);
    if (!reports_[r] || reports_[r]->newcomer) {
      change.newcomers.push_back(rank);
    } else if (change.root < 0) {
      change.root = rank;
    }
  }
  const bool is_told =
      may_be_told && std::ranges::includes(told_change_->newcomers, change.newcomers);
  if (is_told) return as_told();
  // They may have heard of the end of steps that others are still in.
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    const auto& report = reports_[r];
    const bool is_ahead = report && report->newcomer && report->step > outcome.step;
    if (is_ahead && report->step - outcome.step > kMostMissed) {
      return Contradiction("rank ", r, ", which is new, is in step ", report->step,
                           ", the others in step ", outcome.step);
    }
    while (is_ahead && report->step > outcome.step) {
      outcome.ended.push_back(Ended(outcome.step++, Verdict::kSkip, 0, "a member was lost in it"));
    }
  }
  outcome.ended.push_back(Ended(
      outcome.step, Verdict::kSkip, 0,
      change.newcomers.empty() ? std::string(kMembersLost) : wire::NewRanks(change.newcomers)));
  outcome.ended.back().change = change;
  outcome.change = std::move(change);
  ++outcome.step;
  return absl::OkStatus();
}

void Gathering::Tell(const Outcome& outcome) {
  const auto fresh = std::span(outcome.ended).subspan(told_.size());
  told_step_ = outcome.step;
  for (std::optional<wire::MemberReport>& report : reports_) {
    if (report) Hear(*report, fresh);
  }
  told_ = outcome.ended;
  told_change_ = outcome.change;
  told_ranks_ = RanksHere();
}

}  // namespace gradwire::server

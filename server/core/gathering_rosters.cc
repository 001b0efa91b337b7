// Where a session shrinks: who is in it, who is enough, and who was left behind.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "server/core/gathering.h"

namespace gradwire::server {

void Gathering::SetGone(int rank) {
  reports_[static_cast<std::size_t>(rank)].reset();
  gone_[static_cast<std::size_t>(rank)] = true;
  left_[static_cast<std::size_t>(rank)] = false;
  leaf_of_[static_cast<std::size_t>(rank)] = -1;
}

// Those behind an earlier leaf of the rank are awaited again.
void Gathering::SetPlace(int rank, std::optional<int> leaf_ranks) {
  for (std::size_t r = 0; r < leaf_of_.size(); ++r) {
    if (leaf_of_[r] != rank && static_cast<int>(r) != rank) continue;
    leaf_of_[r] = -1;
    gone_[r] = false;
  }
  for (int r = rank; r < rank + leaf_ranks.value_or(0); ++r) {
    SetGone(r);
    leaf_of_[static_cast<std::size_t>(r)] = rank;
  }
}

const std::optional<wire::MemberReport>& Gathering::ReportFor(int rank) const {
  const int leaf = leaf_of_[static_cast<std::size_t>(rank)];
  return reports_[static_cast<std::size_t>(leaf < 0 ? rank : leaf)];
}

std::uint32_t Gathering::Shares() const {
  std::uint32_t shares = AllNew() ? 0 : 1;
  for (const auto& report : reports_) {
    if (report) shares = std::max(shares, report->shares);
  }
  return shares;
}

absl::Status Gathering::CheckShares() const {
  int first = -1;
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    if (!reports_[r]) continue;
    if (first < 0) first = static_cast<int>(r);
    const std::uint32_t others = reports_[static_cast<std::size_t>(first)]->shares;
    if (reports_[r]->shares == others) continue;
    return Coded(ErrorCode::kResume,
                 absl::FailedPreconditionError(absl::StrCat(
                     "the members' reports contradict each other: node groups have ", others,
                     " shares for rank ", first, ", and ", reports_[r]->shares, " for rank ", r)));
  }
  return absl::OkStatus();
}

bool Gathering::HasOrHadLeaves() const {
  return std::ranges::any_of(leaf_of_, [](int leaf) { return leaf >= 0; }) ||
         std::ranges::any_of(reports_,
                             [](const auto& report) { return report && report->has_leaves; });
}

// Two daemons may have made rosters of one number. The one in which a step was concluded counts, or
// may have been: all of its members have answered.
const wire::MemberReport* Gathering::Latest() const {
  const auto key = [](const wire::MemberReport& report) {
    const bool answered = report.ready || report.concluded == report.roster->ranks;
    return std::tuple(report.roster->number, answered, report.step);
  };
  const wire::MemberReport* latest = nullptr;
  for (const auto& report : reports_) {
    if (report && report->roster && (latest == nullptr || key(*report) > key(*latest))) {
      latest = &*report;
    }
  }
  return latest;
}

std::vector<int> Gathering::RanksOf(const wire::MemberReport* report) const {
  if (report != nullptr && report->roster) return report->roster->ranks;
  std::vector<int> all(reports_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int> Gathering::ProcessesHere() const {
  std::vector<int> here;
  for (std::size_t r = 0; r < gone_.size(); ++r) {
    if (!gone_[r]) here.push_back(static_cast<int>(r));
  }
  return here;
}

std::vector<int> Gathering::RanksHere() const {
  std::vector<int> here;
  for (std::size_t r = 0; r < gone_.size(); ++r) {
    const int leaf = leaf_of_[r];
    if (!gone_[leaf < 0 ? r : static_cast<std::size_t>(leaf)]) here.push_back(static_cast<int>(r));
  }
  return here;
}

// The others have been told that a step is applied, without it, or of the end of later steps than
// the one that it is in.
bool Gathering::CannotFollow(const wire::MemberReport& report) const {
  const bool lacks_some = !told_.empty() && !report.newcomer && report.step < told_.front().step;
  if (shrinks_ && lacks_some) return true;
  return shrinks_ && std::ranges::any_of(told_, [&](const wire::StepDone& done) {
           const bool is_ready = report.ready && report.ready->verdict == Verdict::kApply;
           return done.verdict == Verdict::kApply && report.step <= done.step &&
                  !(report.step == done.step && is_ready);
         });
}

// Others have seen its step applied, or are too far ahead to say.
bool Gathering::Lacks(const wire::MemberReport& report) const {
  if (report.newcomer || (report.ready && report.ready->verdict == Verdict::kApply)) return false;
  return std::ranges::any_of(reports_, [&](const auto& other) {
    if (!other || other->newcomer || other->step <= report.step) return false;
    const std::optional<Verdict> seen = other->Saw(report.step);
    const std::int64_t apart = other->step - report.step;
    return apart > kMostMissed || (apart > 2 && !seen) || seen == Verdict::kApply;
  });
}

std::vector<int> Gathering::LeftBehind() const {
  std::vector<int> left;
  if (!shrinks_) return left;
  const std::vector<int> ranks = RanksOf(Latest());
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    const int rank = static_cast<int>(r);
    const bool is_out = reports_[r] && !std::ranges::binary_search(ranks, rank);
    if (left_[r] || is_out || (reports_[r] && Lacks(*reports_[r]))) left.push_back(rank);
  }
  return left;
}

std::uint64_t Gathering::LatestNumber() const {
  const wire::MemberReport* const latest = Latest();
  return latest == nullptr ? 0 : latest->roster->number;
}

// As Tell, but for what begins then: that is decided here. A change that was told earlier is none
// of the last one any more.
void Gathering::Assume(std::span<const wire::StepDone> ended) {
  const auto is_new = [&](const wire::StepDone& done) {
    return told_.empty() || done.step > told_.back().step;
  };
  const auto first = std::ranges::find_if(ended, is_new);
  if (first == ended.end()) return;
  told_.insert(told_.end(), first, ended.end());
  told_change_.reset();
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    if (!reports_[r]) continue;
    if (CannotFollow(*reports_[r])) left_[r] = true;
    Hear(*reports_[r], told_);
  }
}

bool Gathering::IsQuorum(const std::vector<int>& here, int least) const {
  const auto place = [](const wire::MemberReport& report) {
    return std::pair(report.step, report.roster ? report.roster->number : 0);
  };
  const wire::MemberReport* furthest = nullptr;
  std::vector<int> reporters;
  for (const int rank : here) {
    const auto& report = ReportFor(rank);
    if (!report || report->newcomer) continue;
    reporters.push_back(rank);
    if (furthest == nullptr || place(*report) > place(*furthest)) furthest = &*report;
  }
  if (furthest == nullptr || std::ssize(reporters) < least) return false;
  return (arbiter_ != 0 && may_be_minority_) || IsMajority(here, reporters, *furthest);
}

// Two halves of a session that cannot hear each other must not both go on. Or all who vote, which
// may be newcomers to a roster that has concluded a skipped step only. If it has not, those that
// they have replaced vote, too, but were outvoted when the roster began.
bool Gathering::IsMajority(const std::vector<int>& here, const std::vector<int>& reporters,
                           const wire::MemberReport& furthest) const {
  const std::vector<int> voters =
      furthest.concluded.empty() ? RanksOf(nullptr) : furthest.concluded;
  const auto is_majority = [](const std::vector<int>& part, const std::vector<int>& of) {
    std::vector<int> both;
    std::ranges::set_intersection(of, part, std::back_inserter(both));
    return 2 * both.size() > of.size();
  };
  const bool are_all_here = std::ranges::all_of(voters, [&](int rank) {
    const auto& report = ReportFor(rank);
    return std::ranges::count(here, rank) > 0 && report && report->roster &&
           report->roster == furthest.roster;
  });
  // A step that one is READY for may have been concluded by all of its roster, newcomers too: these
  // would be none any more.
  const bool are_enough = are_all_here || is_majority(reporters, voters);
  return are_enough && std::ranges::all_of(reporters, [&](int rank) {
           const wire::MemberReport& report = *ReportFor(rank);
           if (!report.ready || !report.roster) return true;
           std::vector<int> part = here;
           std::erase_if(part, [&](int other) {
             const auto& said = ReportFor(other);
             return !said || (said->newcomer && said->roster != report.roster);
           });
           return is_majority(part, report.roster->ranks);
         });
}

// Not all may have heard of the last roster, which may have the same ranks as the next.
bool Gathering::Moves() const {
  const std::vector<int> here = RanksHere();
  return shrinks_ && std::ranges::any_of(reports_, [&](const auto& report) {
           return report && RanksOf(&*report) != here;
         });
}

// With a step that was dropped before this roster was made.
bool Gathering::WasToldOthers() const {
  const auto last = std::find_if(told_.rbegin(), told_.rend(), [](const wire::StepDone& done) {
    return done.change && !done.change->ranks.empty();
  });
  return last != told_.rend() && last->change->ranks != RanksHere();
}

// Whether `step` can go on: with the mean of those who are here, all can begin it again, and nobody
// waits for somebody who has been through a broadcast with lost members. Who has heard of a change
// that others have not heard of counts broadcasts otherwise than they do.
bool Gathering::CanGoOn(std::int64_t step) const {
  if (!shrinks_) return true;
  std::uint64_t most = 0;
  for (const auto& report : reports_) {
    if (report) most = std::max(most, report->collectives);
  }
  const bool moves = Moves() && !IsActive(Mutant::kSeenResultsOfOthersStay);
  if ((moves || WasToldOthers()) && (is_grouped_ || HasOrHadLeaves())) return false;
  // It is void, and some have heard so with the end of a step that was dropped.
  const auto is_void = [&](const wire::MemberReport& one) {
    return std::ranges::any_of(reports_, [&](const auto& other) {
      return other && other->step > one.step &&
             (other->last == Verdict::kSkip || other->before_last == Verdict::kSkip);
    });
  };
  for (const auto& report : reports_) {
    if (!report) continue;
    if (report->collectives < most && !report->in_collective) return false;
    if (report->in_collective && is_void(*report)) return false;
    if (!moves) continue;
    const bool is_stuck = report->has_seen_results || !report->keeps_gradients;
    if (report->step == step && is_stuck) return false;
    if (report->in_collective || report->collectives < most) return false;
  }
  return true;
}

// ---- Of several shards

std::uint64_t Gathering::HighestLife() const {
  std::uint64_t highest = 0;
  for (const auto& report : reports_) {
    if (report) highest = std::max(highest, report->life);
  }
  return highest;
}

const std::vector<int>* Gathering::Followed() const {
  for (const auto& report : reports_) {
    if (report && report->roster) return &report->roster->ranks;
  }
  return nullptr;
}

}  // namespace gradwire::server

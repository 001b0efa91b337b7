// Where members have seen steps end that others have not.
#include <algorithm>
#include <vector>

#include "server/core/gathering.h"
#include "server/core/gathering_words.h"

namespace gradwire::server {
namespace {

// Of a step that members have seen skipped.
constexpr char kSeenByOthers[] = "other members saw it skipped, before the daemon was lost";

}  // namespace

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

// Those have heard of steps that were dropped, as one daemon after another was lost or took
// newcomers in, while others have heard of nothing. Who is at `step` may be READY with an outcome
// that never was: only those ahead know it.
absl::StatusOr<Gathering::Outcome> Gathering::FollowThoseFarAhead(const Reporters& all,
                                                                  std::int64_t step,
                                                                  std::int64_t apart) const {
  std::optional<Verdict> first;
  int knows = -1;
  std::uint64_t digest = 0;
  for (const auto& [rank, report] : all) {
    if (report->step == step) continue;
    for (std::int64_t later = step + 1; later < report->step; ++later) {
      const std::optional<Verdict> saw = report->Saw(later);
      if (saw == Verdict::kSkip) continue;
      return Contradiction("step ", later, saw ? " was applied by rank " : " is unknown to rank ",
                           rank, ", in step ", report->step, ", and others have not been in it");
    }
    const std::optional<Verdict> seen = report->Saw(step);
    if (!seen || (first && first != seen)) {
      return Contradiction("rank ", rank, " cannot say how step ", step,
                           " ended, or says otherwise than rank ", knows);
    }
    first = seen;
    knows = rank;
  }
  for (const auto& [rank, report] : all) {
    if (report->step != step) continue;
    const bool agrees = report->ready && report->ready->verdict == *first;
    if (*first == Verdict::kApply && !agrees) {
      return Contradiction("step ", step, " was applied by rank ", knows, ", and rank ", rank,
                           report->ready ? " has results that skip it" : " lacks its results");
    }
    if (agrees) digest = report->ready->digest;
  }
  Outcome outcome{.step = step + apart, .ended = {Ended(step, *first, digest, kSeenByOthers)}};
  for (std::int64_t later = step + 1; later < outcome.step; ++later) {
    outcome.ended.push_back(Ended(later, Verdict::kSkip, 0, "a member was lost in it"));
  }
  return outcome;
}

// Means of one roster are not those of another one.
std::vector<wire::StepDone> Gathering::Known() const {
  if (follows_ || shrinks_) return {};
  Reporters all;
  for (std::size_t r = 0; r < reports_.size(); ++r) {
    if (!reports_[r] || reports_[r]->newcomer) continue;
    if (reports_[r]->roster) return {};
    all.push_back({.rank = static_cast<int>(r), .report = &*reports_[r]});
  }
  if (all.empty()) return {};
  const auto step_of = [](const Reporter& one) { return one.report->step; };
  const auto [first, last] = std::ranges::minmax_element(all, {}, step_of);
  const std::int64_t step = first->report->step;
  const std::int64_t apart = last->report->step - step;
  if (apart < 1) return told_;  // they report as if they had heard it
  if (apart > kMostMissed) return {};
  absl::StatusOr<Outcome> outcome =
      apart > 1 ? FollowThoseFarAhead(all, step, apart) : FollowThoseAhead(all, step);
  if (!outcome.ok() || !DecideChain(all, *outcome).empty()) return {};
  std::vector<wire::StepDone> known = told_;
  known.insert(known.end(), outcome->ended.begin(), outcome->ended.end());
  return known;
}

}  // namespace gradwire::server

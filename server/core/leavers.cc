#include "server/core/leavers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "proto/wire/rank_names.h"

namespace gradwire::server {
namespace {

// For members that do not answer: an earlier version's, or one that is stopped.
constexpr absl::Duration kLongestStay = absl::Seconds(5);
// Many may want to leave at once, each again and again.
constexpr absl::Duration kBetweenAsks = absl::Milliseconds(100);

}  // namespace

Leavers::Leavers(const Membership& membership, absl::Duration resume_grace)
    : membership_(membership),
      resume_grace_(resume_grace),
      heard_(static_cast<std::size_t>(membership.world_size())),
      asked_(heard_.size(), absl::InfinitePast()) {}

void Leavers::Hear(int rank, std::int64_t step) {
  std::int64_t& heard = heard_[static_cast<std::size_t>(rank)];
  heard = std::max(heard, step);
}

void Leavers::Add(int rank, std::int64_t step, absl::Time now) {
  Hear(rank, step);
  since_.try_emplace(rank, now);
}

std::vector<int> Leavers::Lacking(std::int64_t step) const {
  std::vector<int> lacking;
  for (const int rank : membership_.Staying()) {
    if (heard_[static_cast<std::size_t>(rank)] < step) lacking.push_back(rank);
  }
  return lacking;
}

std::vector<int> Leavers::Ready(std::int64_t step, absl::Time now) const {
  const bool all_know = Lacking(step).empty() || IsActive(Mutant::kLeavesAtOnce);
  std::vector<int> ready;
  for (const auto& [rank, since] : since_) {
    const bool is_there = membership_.state(rank) == MemberState::kConnected;
    const absl::Duration stay = is_there ? kLongestStay : resume_grace_;
    if (all_know || now >= since + stay) ready.push_back(rank);
  }
  return ready;
}

std::map<int, absl::Time> Leavers::TakeAll() { return std::exchange(since_, {}); }

std::vector<int> Leavers::ToAsk(std::int64_t step, absl::Time now) {
  std::vector<int> ranks;
  for (const int rank : Lacking(step)) {
    absl::Time& asked = asked_[static_cast<std::size_t>(rank)];
    const bool may_answer = membership_.state(rank) == MemberState::kConnected;
    if (!may_answer || now < asked + kBetweenAsks) continue;
    asked = now;
    ranks.push_back(rank);
  }
  return ranks;
}

absl::Status Leavers::NotYet(std::int64_t step) const {
  const std::vector<int> lacking = Lacking(step);
  return Coded(ErrorCode::kWrongMoment,
               absl::UnavailableError(
                   absl::StrCat(wire::RankNames(lacking), lacking.size() == 1 ? " has" : " have",
                                " not heard yet how step ", step - 1, " ended; try again")));
}

}  // namespace gradwire::server

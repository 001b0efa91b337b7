#include "server/core/late_members.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/membership.h"
#include "server/core/session_options.h"
#include "server/core/step.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kMeasured = 32;   // steps, of which the median is taken
constexpr std::int64_t kShareOf = 100;  // steps, of which a member may miss a share

}  // namespace

LateMembers::LateMembers(const SessionOptions& options)
    : options_(options), members_(Index(options.world_size)) {}

void LateMembers::OnPrepared(absl::Duration took) {
  if (any_) return;
  spans_.push_back(took);
  if (spans_.size() > kMeasured) spans_.pop_front();
}

// The floor keeps steps of a few milliseconds from being cut off by the scheduler's noise.
std::optional<absl::Duration> LateMembers::Deadline() const {
  if (spans_.size() < std::max<std::size_t>(options_.straggler_steps, 1)) return std::nullopt;
  std::vector<absl::Duration> sorted(spans_.begin(), spans_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return std::max(options_.straggler_floor, *middle * options_.straggler_multiple);
}

// Its trainer may still be in the step that it missed last, and catches up in the one after it.
bool LateMembers::MayBeLate(Member& member, std::int64_t step) const {
  while (!member.missed.empty() && member.missed.front() <= step - kShareOf) {
    member.missed.pop_front();
  }
  if (!member.missed.empty() && member.missed.back() >= step - 1) return false;
  const double most = options_.straggler_share * static_cast<double>(kShareOf);
  return member.may_miss && static_cast<double>(member.missed.size() + 1) <= most;
}

// If one of those that are waited for may not be late, the step waits for that one anyway, and
// nothing is gained without the others.
std::vector<int> LateMembers::Find(const Step& step, const Membership& membership, absl::Time now) {
  const std::optional<absl::Duration> deadline = Deadline();
  if (any_ || !deadline || !step.began() || step.gate().shut()) return {};
  if (step.gate().OpenFor(*step.began(), now) <= *deadline) return {};
  std::vector<int> late;
  const std::vector<int> staying = membership.Staying();
  for (const int rank : staying) {
    if (step.HasEnded(rank)) continue;
    const bool lacks = std::ranges::any_of(step.buckets().all(), [&](const auto& one) {
      const Bucket& bucket = one.second;
      return bucket.step() == step.number() && !bucket.IsAnnouncedBy(rank);
    });
    if (!lacks) continue;
    const bool may_be = membership.state(rank) == MemberState::kConnected &&
                        MayBeLate(members_[Index(rank)], step.number());
    if (!may_be) return {};
    late.push_back(rank);
  }
  const std::size_t others = staying.size() - late.size();
  const auto least = static_cast<std::size_t>(std::max(options_.shrinks_to, 1));
  if (late.empty() || 2 * others <= staying.size() || others < least) return {};
  for (const int rank : late) members_[Index(rank)].late = true;
  any_ = true;
  return late;
}

bool LateMembers::Count(int rank, std::int64_t step) {
  Member& member = members_[Index(rank)];
  if (!member.missed.empty() && member.missed.back() == step) return false;
  member.missed.push_back(step);
  ++member.missed_total;
  return true;
}

void LateMembers::EndStep() {
  any_ = false;
  for (Member& member : members_) member.late = false;
}

std::string LateMembers::Sentence(const std::vector<int>& ranks, const Membership& membership,
                                  std::int64_t step, absl::Duration open) const {
  return absl::StrCat(
      membership.Names(ranks, now_), ranks.size() == 1 ? " is" : " are", " late in step ", step,
      ", which is open for ", absl::FormatDuration(absl::Trunc(open, absl::Milliseconds(1))),
      "; the deadline was ", absl::FormatDuration(absl::Trunc(*Deadline(), absl::Milliseconds(1))),
      ". The others go on without buckets that ", ranks.size() == 1 ? "it has" : "they have",
      " not announced");
}

}  // namespace gradwire::server

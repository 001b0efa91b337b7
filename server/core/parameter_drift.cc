#include "server/core/parameter_drift.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/membership.h"

namespace gradwire::server {
namespace {

// Of each group; a model that drifts everywhere would fill the log.
constexpr std::size_t kMostRanks = 8;
// Of FNV-1a with 64 bits.
constexpr std::uint64_t kFnvOffset = 0xcbf29ce484222325;
constexpr std::uint64_t kFnvPrime = 0x100000001b3;

std::string NamesOf(const std::vector<int>& ranks, const Membership& membership) {
  std::vector<std::string> names;
  for (const int rank : ranks) {
    if (names.size() == kMostRanks) {
      names.push_back(absl::StrCat(ranks.size() - kMostRanks, " more"));
      break;
    }
    names.push_back(membership.NameOf(rank));
  }
  if (names.size() == 1) return names.front();
  const std::string last = std::move(names.back());
  names.pop_back();
  return absl::StrCat(absl::StrJoin(names, ", "), " and ", last);
}

}  // namespace

std::vector<std::vector<int>> ParameterDrift::Groups() const {
  std::map<std::uint64_t, std::vector<int>> by_digest;
  for (const auto& [rank, digest] : digests_) by_digest[digest].push_back(rank);
  std::vector<std::vector<int>> groups;
  for (auto& [digest, ranks] : by_digest) groups.push_back(std::move(ranks));
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
  });
  return groups;
}

bool ParameterDrift::AllHaveSaid(const Membership& membership) const {
  std::vector<bool> said(static_cast<std::size_t>(membership.world_size()));
  for (const auto& [rank, digest] : digests_) said[static_cast<std::size_t>(rank)] = true;
  return membership.AllHere(said);
}

std::optional<std::uint64_t> ParameterDrift::ForRoot(const Membership& membership) const {
  if (digests_.empty() || !AllHaveSaid(membership)) return std::nullopt;
  if (Groups().size() == 1) return digests_.begin()->second;
  // Ranks are those of the whole session, so two leaves with the same digests differ, too.
  std::uint64_t mixed = kFnvOffset;
  for (const auto& [rank, digest] : digests_) {
    mixed = (mixed ^ static_cast<std::uint64_t>(rank)) * kFnvPrime;
    mixed = (mixed ^ digest) * kFnvPrime;
  }
  return mixed;
}

std::string ParameterDrift::Since(std::int64_t step) const {
  const std::int64_t first = differs_at_.value_or(step);
  if (!same_at_) return absl::StrCat("since before step ", first);
  return absl::StrCat("since a step between ", *same_at_, " and ", first);
}

std::string ParameterDrift::EndStep(std::int64_t step, const Membership& membership,
                                    Effects& effects) {
  if (digests_.empty()) return "";
  const auto log = [&effects](std::string message) {
    effects.push_back(
        LogEffect{.level = LogEffect::Level::kWarning, .message = std::move(message)});
  };
  const std::vector<std::vector<int>> groups = Groups();
  const bool all = AllHaveSaid(membership);
  if (!all && !std::exchange(told_of_silent_, true)) {
    log(absl::StrCat("step ", step, ": ", NamesOf(groups.front(), membership),
                     " sent a digest of their parameters, and other members did not; "
                     "check_parameters_every must be the same on all members"));
  }
  const std::size_t members = std::exchange(digests_, {}).size();
  if (groups.size() == 1) {
    // Of a member that sent nothing it says nothing.
    if (all && members > 1) {
      same_at_ = step;
      differs_at_.reset();
    }
    return "";
  }
  std::string sentence;
  if (2 * groups.front().size() > members) {
    std::vector<int> others;
    for (std::size_t i = 1; i < groups.size(); ++i) {
      others.insert(others.end(), groups[i].begin(), groups[i].end());
    }
    std::sort(others.begin(), others.end());
    sentence = absl::StrCat("the parameters of ", NamesOf(others, membership),
                            " have differed from the others' ", Since(step));
  } else {
    std::vector<std::string> names;
    for (const std::vector<int>& group : groups) {
      if (names.size() == kMostRanks) break;
      names.push_back(NamesOf(group, membership));
    }
    sentence = absl::StrCat("no majority of members has had the same parameters ", Since(step),
                            ": ", absl::StrJoin(names, "; "));
  }
  if (!differs_at_) differs_at_ = step;
  log(absl::StrCat("step ", step, ": ", sentence));
  last_ = absl::StrCat("step ", step, ": ", sentence);
  return sentence;
}

}  // namespace gradwire::server

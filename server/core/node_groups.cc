#include "server/core/node_groups.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"

namespace gradwire::server {
namespace {

std::vector<std::vector<int>> EachAlone(int world_size) {
  std::vector<std::vector<int>> groups;
  for (int r = 0; r < world_size; ++r) groups.push_back({r});
  return groups;
}

}  // namespace

NodeGroups::NodeGroups(int world_size)
    : NodeGroups(EachAlone(world_size), static_cast<std::size_t>(world_size)) {}

NodeGroups::NodeGroups(std::vector<std::vector<int>> groups, std::size_t world_size)
    : groups_(std::move(groups)), group_of_(world_size) {
  std::size_t shares = 1;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    shares = std::max(shares, groups_[g].size());
    for (const int rank : groups_[g]) group_of_[static_cast<std::size_t>(rank)] = g;
  }
  for (std::size_t share = 0; share < shares; ++share) {
    std::vector<std::uint32_t> weights(world_size);
    for (const std::vector<int>& ranks : groups_) {
      weights[static_cast<std::size_t>(ranks[share % ranks.size()])] = 1;
    }
    contributors_.push_back(std::make_shared<const Contributors>(std::move(weights)));
  }
}

absl::StatusOr<NodeGroups> NodeGroups::Make(std::span<const GroupAsk> asks) {
  std::vector<std::vector<int>> groups;
  std::map<std::string, std::size_t> by_name;
  bool leaves = false;
  for (std::size_t r = 0; r < asks.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (asks[r].gone) continue;
    leaves |= asks[r].ranks != 1;
    if (asks[r].ranks == 0) continue;
    if (asks[r].name.empty()) {
      groups.push_back({rank});
      continue;
    }
    const auto [found, is_new] = by_name.emplace(asks[r].name, groups.size());
    if (is_new) {
      groups.push_back({rank});
      continue;
    }
    std::vector<int>& ranks = groups[found->second];
    const std::string& first = asks[static_cast<std::size_t>(ranks.front())].communicator;
    if (asks[r].communicator != first) {
      return Coded(ErrorCode::kNodeGroup,
                   absl::InvalidArgumentError(absl::StrCat(
                       "rank ", rank, " has ", asks[r].communicator, " and rank ", ranks.front(),
                       " of the same node group has ", first,
                       "; install the same version for both, or join with node_group \"off\"")));
    }
    ranks.push_back(rank);
  }
  NodeGroups made(std::move(groups), asks.size());
  if (leaves && made.any()) {
    return Coded(ErrorCode::kNodeGroup,
                 absl::InvalidArgumentError("the session has leaf daemons and node groups of "
                                            "several members; allowed: one of the two"));
  }
  made.has_leaves_ = leaves;
  return made;
}

std::string NodeGroups::Name(std::size_t group) const {
  return absl::StrCat(groups_[group].size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(groups_[group], ", "));
}

std::vector<int> NodeGroups::Firsts() const {
  std::vector<int> firsts;
  for (const std::size_t group : group_of_) firsts.push_back(groups_[group].front());
  return firsts;
}

// Shares go by a group's size, and the place in it. Where there are no shares, all have everything.
std::vector<int> NodeGroups::Parts() const {
  std::vector<int> parts(group_of_.size());
  if (!any()) return parts;
  std::map<std::pair<std::size_t, std::size_t>, int> first;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const std::vector<int>& ranks = groups_[group_of_[r]];
    const auto place = static_cast<std::size_t>(
        std::ranges::lower_bound(ranks, static_cast<int>(r)) - ranks.begin());
    parts[r] = first.try_emplace({ranks.size(), place}, static_cast<int>(r)).first->second;
  }
  return parts;
}

wire::NodeGroup NodeGroups::PlaceOf(int rank) const {
  return {.ranks = RanksWith(rank),
          .shares = shares(),
          .groups = static_cast<std::uint32_t>(count()),
          .group = static_cast<std::uint32_t>(GroupOf(rank))};
}

}  // namespace gradwire::server

#include "server/core/node_groups.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "proto/wire/rank_names.h"
#include "proto/wire/share_owners.h"

namespace gradwire::server {
namespace {

std::vector<std::vector<int>> EachAlone(int world_size) {
  std::vector<std::vector<int>> groups;
  for (int r = 0; r < world_size; ++r) groups.push_back({r});
  return groups;
}

}  // namespace

NodeGroups::NodeGroups(int world_size)
    : NodeGroups(EachAlone(world_size), static_cast<std::size_t>(world_size), 1) {}

NodeGroups::NodeGroups(std::vector<std::vector<int>> groups, std::size_t world_size,
                       std::uint32_t shares)
    : groups_(std::move(groups)), group_of_(world_size) {
  std::vector<std::vector<std::uint32_t>> weights(shares, std::vector<std::uint32_t>(world_size));
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const int rank : groups_[g]) group_of_[static_cast<std::size_t>(rank)] = g;
    const std::vector<std::size_t> owners = wire::ShareOwners(groups_[g], shares);
    for (std::uint32_t share = 0; share < shares; ++share) {
      weights[share][static_cast<std::size_t>(groups_[g][owners[share]])] = 1;
    }
  }
  for (std::vector<std::uint32_t>& one : weights) {
    contributors_.push_back(std::make_shared<const Contributors>(std::move(one)));
  }
}

absl::StatusOr<NodeGroups> NodeGroups::Make(std::span<const GroupAsk> asks, std::uint32_t shares) {
  std::vector<std::vector<int>> groups;
  std::map<std::string, std::size_t> by_name;
  bool leaves = false;
  for (std::size_t r = 0; r < asks.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (asks[r].gone) continue;
    leaves |= asks[r].ranks != 1;
    if (asks[r].ranks == 0) continue;
    if (asks[r].name.empty() || shares == 1) {
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
  if (shares == 0) {
    for (const std::vector<int>& ranks : groups) {
      shares = std::max(shares, static_cast<std::uint32_t>(ranks.size()));
    }
  }
  NodeGroups made(std::move(groups), asks.size(), std::max(shares, 1U));
  if (leaves && made.any()) {
    return Coded(ErrorCode::kNodeGroup,
                 absl::InvalidArgumentError("the session has leaf daemons and node groups of "
                                            "several members; allowed: one of the two"));
  }
  made.has_leaves_ = leaves;
  return made;
}

std::string NodeGroups::Name(std::size_t group) const { return wire::RankNames(groups_[group]); }

std::vector<int> NodeGroups::Firsts() const {
  std::vector<int> firsts;
  for (const std::size_t group : group_of_) firsts.push_back(groups_[group].front());
  return firsts;
}

wire::NodeGroup NodeGroups::PlaceOf(int rank) const {
  return {.ranks = RanksWith(rank),
          .shares = shares(),
          .groups = static_cast<std::uint32_t>(count()),
          .group = static_cast<std::uint32_t>(GroupOf(rank))};
}

}  // namespace gradwire::server

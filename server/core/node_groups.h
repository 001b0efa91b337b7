// The node groups of a session: which members add up their gradients among themselves, and who of
// them brings which share of the sum to the coordinator.
//
// A leaf daemon is a group that has added up its members' gradients itself; of its ranks only the
// first is here.
//
// A group contributes as one member would: contributions have weight 1 each, and the group's own
// mean is weighted by its size before it comes (client/core/grouped_member.h). A member in no group
// is a group of its own. The parameters are divided into as many shares as the largest group has
// members when the session begins; in a smaller one members have several (wire::ShareOwners).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/frame.h"
#include "server/core/contributors.h"

namespace gradwire::server {

// What a member that joins says about its node.
struct GroupAsk {
  std::string name;          // empty: it is in no group
  std::string communicator;  // what it reaches the others with
  // Ranks that it stands for: more than its own, if it is a leaf daemon; 0: it is elsewhere.
  int ranks = 1;
  bool gone = false;  // the session goes on without it
};

class NodeGroups {
 public:
  // Without groups: every member contributes everything.
  explicit NodeGroups(int world_size);

  // `asks` by rank. `shares`: those of a session that goes on, where 1 means that it has no groups,
  // whatever is asked for; 0: it begins. InvalidArgument: two members of a group reach others by
  // different means, or leaves and groups of several members are in one session.
  static absl::StatusOr<NodeGroups> Make(std::span<const GroupAsk> asks, std::uint32_t shares = 0);

  // Whether some ranks are behind leaves.
  bool has_leaves() const { return has_leaves_; }
  // Whether some members share a group, or have done so.
  bool any() const { return shares() > 1; }
  std::uint32_t shares() const { return static_cast<std::uint32_t>(contributors_.size()); }

  std::size_t count() const { return groups_.size(); }
  // Ascending ranks.
  const std::vector<int>& ranks(std::size_t group) const { return groups_[group]; }
  std::size_t GroupOf(int rank) const { return group_of_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& RanksWith(int rank) const { return ranks(GroupOf(rank)); }
  // "ranks 0, 1"
  std::string Name(std::size_t group) const;

  // Who contributes the parameters of a share. share < shares().
  const std::shared_ptr<const Contributors>& contributors(std::uint32_t share) const {
    return contributors_[share];
  }

  // By rank: the first one of its group.
  std::vector<int> Firsts() const;

  // What the member is told.
  wire::NodeGroup PlaceOf(int rank) const;

 private:
  NodeGroups(std::vector<std::vector<int>> groups, std::size_t world_size, std::uint32_t shares);

  bool has_leaves_ = false;
  std::vector<std::vector<int>> groups_;  // in the order of their first ranks
  std::vector<std::size_t> group_of_;     // by rank; of those who are gone it says nothing
  std::vector<std::shared_ptr<const Contributors>> contributors_;  // by share
};

}  // namespace gradwire::server

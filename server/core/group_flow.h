// Node groups in the step protocol: members tell which buckets they have, and the coordinator tells
// each group what to do next, so that all of its members do the same in the same order. A bucket is
// exchanged when all of the group have it. Their shares of it then come as buckets like any other,
// and when all of those are reduced, the group gathers the results. A member alone in its group
// needs no orders.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/core/effects.h"
#include "server/core/failure_policy.h"
#include "server/core/membership.h"
#include "server/core/node_groups.h"
#include "server/core/session_options.h"

namespace gradwire::server {

class GroupFlow {
 public:
  // Both outlive it.
  GroupFlow(const SessionOptions& options, const Membership& membership);

  // All members are here. Until then nobody is in a group.
  void SetGroups(NodeGroups groups);
  const NodeGroups& groups() const { return groups_; }

  // Frames of members. Step::OnGroupBucket has compared the step.
  MaybeFailure OnId(int rank, const wire::GroupId& id, Effects& effects);
  absl::Status OnBucket(int rank, const wire::GroupBucket& bucket, Effects& effects);

  // Whether these parameters may come as a share from this member: the share is the member's, and
  // its group exchanges the one bucket that they are in.
  absl::Status CheckShare(int rank, const wire::Announce& announce) const;
  // They are reduced.
  void OnReduced(const std::vector<std::uint32_t>& parameters, Effects& effects);

  // The step is over; the next one is `step`.
  void BeginStep(std::int64_t step);
  // A new stream of the member, which is at `member_step`: what it may have missed.
  void Resume(int rank, std::int64_t member_step, Effects& effects);

  // A bucket that some member has, and another one, which has `ended` its step, has not: that
  // member's rank, and an error. None: there is none.
  MaybeFailure CheckEnded(const std::vector<bool>& ended) const;
  // Members that do not have a bucket for which their group waits; none: no group waits.
  struct Missing {
    std::vector<int> ranks;
    std::string bucket;
  };
  Missing FindMissing() const;
  // The same in words, or empty.
  std::string WaitingFor(absl::Time now) const;
  // A bucket that groups have exchanged and that is not reduced, where no share of it tells more.
  std::string WaitingForShares() const;

  // Upper bound of what one bucket takes, in this step and the one before.
  static std::size_t BytesForBucket(std::size_t members);

 private:
  struct Bucket {
    std::vector<std::uint32_t> parameters;
    std::vector<bool> had;      // by rank
    std::size_t unreduced = 0;  // parameters
  };
  // One group's orders in a step: buckets' ids, times two, plus one to gather.
  using Orders = std::vector<std::uint32_t>;

  static std::size_t Index(int rank) { return static_cast<std::size_t>(rank); }
  // Whether the member needs orders.
  bool IsLed(int rank) const {
    return !membership_.IsGone(rank) && groups_.RanksWith(rank).size() > 1;
  }
  static wire::GroupOrder OrderOf(std::int64_t step, const Orders& orders, std::size_t number);
  absl::Status CheckBucket(const wire::GroupBucket& bucket) const;
  // Whether all of the member's group have the bucket, so that they were told to exchange it.
  bool IsExchanged(const Bucket& bucket, int rank) const;
  void Order(std::size_t group, std::uint32_t bucket, bool gather, Effects& effects);

  const SessionOptions& options_;
  const Membership& membership_;
  NodeGroups groups_;
  std::vector<std::string> ids_;             // by group; empty: none yet
  std::int64_t step_ = 0;                    // the open one
  std::map<std::uint32_t, Bucket> buckets_;  // of the open step, by id
  std::vector<std::uint32_t> owner_;         // by parameter: its bucket's id
  std::vector<Orders> orders_;               // of the open step, by group
  std::vector<Orders> former_orders_;        // of the step before it
};

}  // namespace gradwire::server

#include "proto/wire/group_frames.h"

#include <algorithm>
#include <functional>

#include "base/limits.h"

namespace gradwire::wire {

void Set(const GroupBucket& bucket, v1::Header& out) {
  v1::GroupBucket& message = *out.mutable_group_bucket();
  message.set_step(bucket.step);
  message.set_generation(bucket.generation);
  message.mutable_parameters()->Add(bucket.parameters.begin(), bucket.parameters.end());
}

GroupBucket Get(const v1::GroupBucket& message, Checker& check) {
  GroupBucket bucket{.step = check.Step(message.step()), .generation = message.generation()};
  check.Count("parameters", static_cast<std::size_t>(message.parameters_size()), 1, kMaxParameters);
  if (!check.status().ok()) return bucket;
  bucket.parameters.reserve(static_cast<std::size_t>(message.parameters_size()));
  for (const std::uint32_t parameter : message.parameters()) {
    bucket.parameters.push_back(check.Parameter("parameters", parameter));
  }
  return bucket;
}

void Set(const GroupId& id, v1::Header& out) {
  out.mutable_group_id()->set_generation(id.generation);
  out.mutable_group_id()->set_id(id.id);
}

GroupId Get(const v1::GroupId& message, Checker& check) {
  check.Range("id's bytes", message.id().size(), std::size_t{1}, kMaxGroupIdBytes);
  if (!check.status().ok()) return {};
  return {.generation = message.generation(), .id = message.id()};
}

void Set(const GroupOrder& order, v1::Header& out) {
  v1::GroupOrder& message = *out.mutable_group_order();
  message.set_step(order.step);
  message.set_number(order.number);
  message.set_bucket(order.bucket);
  message.set_gather(order.gather);
}

GroupOrder Get(const v1::GroupOrder& message, Checker& check) {
  return {.step = check.Step(message.step()),
          .number = message.number(),
          .bucket = check.Parameter("bucket", message.bucket()),
          .gather = message.gather()};
}

void Set(const NodeGroup& group, v1::NodeGroup* out) {
  out->mutable_ranks()->Add(group.ranks.begin(), group.ranks.end());
  out->set_shares(group.shares);
  out->set_groups(group.groups);
  out->set_group(group.group);
}

NodeGroup Get(const v1::NodeGroup& message, Checker& check) {
  constexpr auto most = static_cast<std::uint32_t>(kMaxWorldSize);
  NodeGroup group{.shares = check.Range("node_group.shares", message.shares(), 1U, most),
                  .groups = check.Range("node_group.groups", message.groups(), 1U, most),
                  .group = message.group()};
  if (check.status().ok()) check.Range("node_group.group", group.group, 0U, group.groups - 1);
  check.Count("node_group.ranks", static_cast<std::size_t>(message.ranks_size()), 1, most);
  if (!check.status().ok()) return group;
  for (const std::int32_t rank : message.ranks()) {
    group.ranks.push_back(check.Rank("node_group.ranks", rank));
  }
  const bool ascending = std::adjacent_find(group.ranks.begin(), group.ranks.end(),
                                            std::greater_equal<>()) == group.ranks.end();
  if (!ascending) check.Note(NotAllowed("node_group.ranks", "in another order", "ascending ranks"));
  return group;
}

}  // namespace gradwire::wire

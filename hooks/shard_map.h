// Which part of a session's buckets each of its shards reduces: a rule of hook, manifest and number
// of shards, the same for daemons and members.
//
// Hooks that only cast work on single elements: each shard has a slice of every bucket, so that all
// shards have the same work whatever the model's shapes are. PowerSGD works on whole parameters,
// and the coordinator keeps factors of each: a parameter is one shard's for good, and each shard
// gets a bucket of those that are its own. Either way results have the same bits for every number
// of shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/hook_spec.h"
#include "gradwire/hooks/slice.h"

namespace gradwire {

// Immutable.
class ShardMap {
 public:
  // `spec` and `manifest` are valid. InvalidArgument: a number of shards outside of 1 to
  // kMaxShards, or a hook that needs whole buckets (batched_power_sgd, a user's own) with several.
  static absl::StatusOr<ShardMap> Make(const HookSpec& spec,
                                       std::span<const ParameterSpec> manifest,
                                       std::uint32_t shards);

  std::uint32_t shards() const { return shards_; }

  // Each shard has a slice of every bucket, and every parameter is each shard's.
  bool has_slices() const { return owner_.empty(); }
  // Of the bucket that begins with this parameter. Neighbouring buckets begin at other shards,
  // because the last slice of a bucket is the largest.
  Slice SliceOf(std::uint32_t bucket, std::uint32_t shard) const {
    if (!has_slices()) return {};
    return {.part = (shard + bucket) % shards_, .parts = shards_};
  }

  bool Owns(std::uint32_t shard, std::uint32_t parameter) const {
    return has_slices() || owner_[parameter] == shard;
  }
  // By parameter; empty with slices.
  const std::vector<std::uint32_t>& owners() const { return owner_; }
  // How many parameters the shard has.
  std::size_t ParametersOf(std::uint32_t shard) const;

 private:
  ShardMap(std::uint32_t shards, std::size_t parameters, std::vector<std::uint32_t> owner)
      : shards_(shards), parameters_(parameters), owner_(std::move(owner)) {}

  std::uint32_t shards_;
  std::size_t parameters_;
  std::vector<std::uint32_t> owner_;  // by parameter; empty: slices
};

// A number from 0 on for each weight: the heaviest first, each to the bin that weighs least so far,
// of equal ones to the first.
std::vector<std::uint32_t> Balance(std::span<const std::size_t> weights, std::uint32_t bins);

}  // namespace gradwire

// How a bucket is divided among the shards of a session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "client/core/bucket_shares.h"
#include "gradwire/hooks/grad_bucket.h"
#include "hooks/shard_map.h"

namespace gradwire::client {

// A shard's own bucket, in the user's buffer: scattered if its parameters do not lie back to back.
struct ShardBucket {
  std::uint32_t shard = 0;
  GradBucket bucket;
};

// Immutable, thread-safe. With slices each shard gets the whole bucket and takes its part of it;
// otherwise each gets the parameters that it owns.
class ShardBuckets {
 public:
  // `manifest` outlives this.
  ShardBuckets(std::shared_ptr<const ShardMap> map, std::span<const ParameterSpec> manifest);

  // Those that have something of it, on the CPU. InvalidArgument: it has a parameter that is not
  // the model's.
  absl::StatusOr<std::vector<ShardBucket>> Divide(const GradBucket& bucket) const;

 private:
  const std::shared_ptr<const ShardMap> map_;
  const ShareMap owners_;
  std::unordered_map<std::string_view, std::uint32_t> positions_;
};

}  // namespace gradwire::client

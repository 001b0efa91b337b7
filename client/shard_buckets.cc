#include "client/shard_buckets.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire::client {
namespace {

// A flat bucket where the share is one piece, or empty.
absl::StatusOr<GradBucket> PartOf(const GradBucket& bucket, BucketShare share) {
  TensorView buffer = bucket.buffer();
  if (share.pieces.size() > 1) {
    return GradBucket::MakeScattered(bucket.index(), buffer, std::move(share.parameters),
                                     std::move(share.places), bucket.is_last());
  }
  if (!share.pieces.empty()) {
    buffer.data = static_cast<std::byte*>(buffer.data) + share.pieces.front().offset;
  }
  buffer.numel = share.bytes / ByteSize(buffer.dtype);
  return GradBucket::Make(bucket.index(), buffer, std::move(share.parameters), bucket.is_last());
}

}  // namespace

ShardBuckets::ShardBuckets(std::shared_ptr<const ShardMap> map,
                           std::span<const ParameterSpec> manifest)
    : map_(std::move(map)), owners_(map_->owners()) {
  for (std::uint32_t p = 0; p < manifest.size(); ++p) positions_.emplace(manifest[p].name, p);
}

absl::StatusOr<std::vector<ShardBucket>> ShardBuckets::Divide(const GradBucket& bucket) const {
  std::vector<ShardBucket> divided;
  if (map_->has_slices()) {
    for (std::uint32_t shard = 0; shard < map_->shards(); ++shard) {
      divided.push_back({.shard = shard, .bucket = bucket});
    }
    return divided;
  }
  std::vector<std::uint32_t> positions;
  for (const ParameterSpec& parameter : bucket.parameters()) {
    const auto found = positions_.find(parameter.name);
    if (found == positions_.end()) {
      return Coded(ErrorCode::kNotOfModel,
                   absl::InvalidArgumentError(absl::StrCat("parameter \"", parameter.name,
                                                           "\" is not one of the model's")));
    }
    positions.push_back(found->second);
  }
  for (BucketShare& share : owners_.Divide(bucket, positions)) {
    absl::StatusOr<GradBucket> part = PartOf(bucket, std::move(share));
    if (!part.ok()) return part.status();
    divided.push_back({.shard = share.share, .bucket = *std::move(part)});
  }
  return divided;
}

}  // namespace gradwire::client

#include "client/shard_buckets.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire::client {
void ShardBucket::CopyBack(std::byte* buffer) const {
  std::size_t from = 0;
  for (const BucketShare::Piece& piece : pieces) {
    std::memcpy(buffer + piece.offset, own->data() + from, piece.bytes);
    from += piece.bytes;
  }
}

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
  const TensorView whole = bucket.buffer();
  auto* const bytes = static_cast<std::byte*>(whole.data);
  for (BucketShare& share : owners_.Divide(bucket, positions)) {
    TensorView view = whole;
    view.numel = share.bytes / ByteSize(whole.dtype);
    std::shared_ptr<std::vector<std::byte>> own;
    if (share.pieces.size() == 1) {
      view.data = bytes + share.pieces.front().offset;
      share.pieces.clear();
    } else {
      own = std::make_shared<std::vector<std::byte>>(share.bytes);
      std::size_t to = 0;
      for (const BucketShare::Piece& piece : share.pieces) {
        std::memcpy(own->data() + to, bytes + piece.offset, piece.bytes);
        to += piece.bytes;
      }
      view.data = own->data();
    }
    absl::StatusOr<GradBucket> part =
        GradBucket::Make(bucket.index(), view, std::move(share.parameters), bucket.is_last());
    if (!part.ok()) return part.status();
    divided.push_back({.shard = share.share,
                       .bucket = *std::move(part),
                       .pieces = std::move(share.pieces),
                       .own = std::move(own)});
  }
  return divided;
}

}  // namespace gradwire::client

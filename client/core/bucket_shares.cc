#include "client/core/bucket_shares.h"

#include <map>
#include <utility>

#include "hooks/shard_map.h"

namespace gradwire::client {

ShareMap::ShareMap(std::span<const ParameterSpec> manifest, std::uint32_t shares, bool whole)
    : share_of_(manifest.size()) {
  if (whole) return;
  std::vector<std::size_t> bytes(manifest.size());
  for (std::size_t p = 0; p < manifest.size(); ++p) {
    bytes[p] = manifest[p].numel() * ByteSize(manifest[p].dtype);
  }
  share_of_ = Balance(bytes, shares);
}

std::vector<BucketShare> ShareMap::Divide(const GradBucket& bucket,
                                          std::span<const std::uint32_t> positions) const {
  std::map<std::uint32_t, BucketShare> shares;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const ParameterSpec& parameter = bucket.parameters()[i];
    const std::uint32_t number = ShareOf(positions[i]);
    BucketShare& share = shares[number];
    share.share = number;
    share.parameters.push_back(parameter);
    share.places.push_back(offset / ByteSize(bucket.buffer().dtype));
    const std::size_t bytes = parameter.numel() * ByteSize(bucket.buffer().dtype);
    const bool adjacent =
        !share.pieces.empty() && share.pieces.back().offset + share.pieces.back().bytes == offset;
    if (bytes > 0 && adjacent) share.pieces.back().bytes += bytes;
    if (bytes > 0 && !adjacent) share.pieces.push_back({.offset = offset, .bytes = bytes});
    share.bytes += bytes;
    offset += bytes;
  }
  std::vector<BucketShare> divided;
  for (auto& [number, share] : shares) divided.push_back(std::move(share));
  return divided;
}

}  // namespace gradwire::client

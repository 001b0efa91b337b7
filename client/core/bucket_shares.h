// How a node group divides a bucket among its members: each adds up one share for all, and carries
// that share to the coordinator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "gradwire/hooks/grad_bucket.h"

namespace gradwire::client {

// Parameters of a bucket that one member of the group has. A buffer of its own holds them back to
// back: the pieces of the bucket's buffer in order.
struct BucketShare {
  struct Piece {
    std::size_t offset = 0;  // in the bucket's buffer
    std::size_t bytes = 0;   // 1 or more
  };
  std::uint32_t share = 0;
  std::vector<ParameterSpec> parameters;  // 1 or more
  std::vector<std::size_t> places;        // of each: where it begins in the bucket, in elements
  std::vector<Piece> pieces;
  std::size_t bytes = 0;  // of all pieces
};

// Which share each parameter belongs to: the same for all members of a session, whatever their
// buckets are, so that a hook finds its residuals where they were in the step before.
//
// Parameters are given, largest first, to the share that has the fewest bytes so far.
class ShareMap {
 public:
  // `shares` is 1 or more. `whole`: the hook works on whole buckets, which then are not divided;
  // all are in share 0, since parameters may move from bucket to bucket.
  ShareMap(std::span<const ParameterSpec> manifest, std::uint32_t shares, bool whole);
  // As given, by parameter.
  explicit ShareMap(std::vector<std::uint32_t> share_of) : share_of_(std::move(share_of)) {}

  std::uint32_t ShareOf(std::uint32_t parameter) const { return share_of_[parameter]; }

  // Those shares of the bucket that have parameters, in order. `positions` are those of its
  // parameters in the manifest.
  std::vector<BucketShare> Divide(const GradBucket& bucket,
                                  std::span<const std::uint32_t> positions) const;

 private:
  std::vector<std::uint32_t> share_of_;  // by parameter
};

}  // namespace gradwire::client

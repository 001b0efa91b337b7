// The buckets of a draw plan: in whose order a hook draws its first state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace gradwire {

// In order: the positions of a bucket's parameters in the manifest, in the bucket's order.
using DrawBuckets = std::vector<std::vector<std::uint32_t>>;

// InvalidArgument: nothing, an empty bucket, a parameter that is unknown or there twice.
absl::Status CheckDrawBuckets(const DrawBuckets& buckets, std::size_t parameters);

}  // namespace gradwire

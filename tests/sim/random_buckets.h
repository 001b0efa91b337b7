// Buckets of a made-up step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/sim/random.h"

namespace gradwire::sim {

// Disjoint buckets that cover the model.
inline std::vector<std::vector<std::uint32_t>> RandomBuckets(std::size_t parameters,
                                                             Random& random) {
  std::vector<std::uint32_t> order(parameters);
  std::iota(order.begin(), order.end(), 0);
  random.Shuffle(order);
  std::vector<std::vector<std::uint32_t>> buckets;
  for (const std::uint32_t p : order) {
    if (buckets.empty() || random.Percent(50)) buckets.emplace_back();
    buckets.back().push_back(p);
  }
  return buckets;
}

}  // namespace gradwire::sim

// The first factors, drawn as torch draws them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hooks/power_sgd/factors.h"

namespace gradwire {

// In which buckets the first factors are drawn, each with a seed of its own: lists of positions in
// the manifest that have every parameter once. Immutable.
struct DrawPlan {
  std::vector<std::vector<std::uint32_t>> buckets{};
  // The table that a draw makes, by bucket, with empty blocks. Batched: without any, since factors
  // belong to the buckets that members announce.
  FactorTable frame{};

  DrawPlan(const PowerSgdOptions& options, std::span<const ParameterSpec> manifest,
           std::vector<std::vector<std::uint32_t>> plan);
};

// The whole manifest as one bucket.
std::shared_ptr<const DrawPlan> DefaultDrawPlan(const PowerSgdOptions& options,
                                                std::span<const ParameterSpec> manifest);

// A block of torch's normals for one bucket, computed when they are first needed: Q by Q in the
// layout's order, or those of one shape at once; with one round all P's follow.
FactorBlockRef DrawBlock(const PowerSgdOptions& options, std::shared_ptr<const FactorLayout> layout,
                         std::uint32_t seed, std::uint64_t state_version);

}  // namespace gradwire

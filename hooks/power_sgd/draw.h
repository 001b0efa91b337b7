// The first factors, drawn as torch draws them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "hooks/power_sgd/factors.h"

namespace gradwire {

// The buckets in which the first factors are drawn, each with a seed of its own. Thread-safe.
class DrawPlan {
 public:
  // Computed from the buckets.
  struct Table {
    std::size_t seeds =
        0;  // how many are taken: one for each bucket, compressed or not, as in torch
    // The table that a draw fills: a slot with an empty block for each bucket. Batched: no slots,
    // because factors belong to the buckets that members announce.
    FactorTable frame{};
    std::unordered_map<std::uint32_t, std::size_t> batched{};  // bucket by first parameter
  };

  // `buckets` have passed CheckDrawBuckets. Parameters that they leave out form one more bucket if
  // any of them is compressed.
  DrawPlan(const PowerSgdOptions& options, SharedManifest manifest, DrawBuckets buckets);

  // The whole manifest as one bucket.
  static std::shared_ptr<const DrawPlan> Default(const PowerSgdOptions& options,
                                                 SharedManifest manifest);

  const DrawBuckets& buckets() const { return buckets_; }
  bool IsDefault() const;
  // The first call computes it, in time that grows with the manifest.
  const Table& Get() const;
  // Batched: the index of the bucket's seed; none if the bucket is not in the plan.
  std::optional<std::size_t> SeedFor(std::span<const std::uint32_t> bucket) const;

 private:
  void Make() const;
  void AddSlot(std::shared_ptr<const FactorLayout> layout, std::vector<std::uint32_t>& owner) const;

  const PowerSgdOptions options_;
  const SharedManifest manifest_;
  const DrawBuckets buckets_;
  mutable std::once_flag made_;
  mutable Table table_;
};

// A block of torch's normals for one bucket, computed when it is first read. Each Q is drawn by a
// call of its own, in the layout's order, or all Qs of one shape by one call
// (batch_tensors_with_same_shape). With one round all Ps follow.
FactorBlockRef DrawBlock(const PowerSgdOptions& options, std::shared_ptr<const FactorLayout> layout,
                         std::uint32_t seed, std::uint64_t state_version);

// The blocks of the whole plan, from as many seeds as it takes. Batched: none, because factors are
// drawn when a bucket is announced.
FactorTableRef DrawTable(const PowerSgdOptions& options, const DrawPlan& plan,
                         std::span<const std::uint32_t> seeds, std::uint64_t state_version);

}  // namespace gradwire

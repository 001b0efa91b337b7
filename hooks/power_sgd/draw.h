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

// In which buckets the first factors are drawn, each with a seed of its own. Thread-safe.
class DrawPlan {
 public:
  // What follows from the buckets.
  struct Table {
    std::size_t seeds =
        0;  // how many are taken: one for each bucket, compressed or not, as in torch
    // What a draw makes, a slot for each bucket, with empty blocks. Batched: without any, since
    // factors belong to the buckets that members announce.
    FactorTable frame{};
    std::unordered_map<std::uint32_t, std::size_t> batched{};  // the bucket that begins with this
  };

  // `buckets` are checked. What they leave out is one more bucket, if any of it is compressed.
  DrawPlan(const PowerSgdOptions& options, SharedManifest manifest, DrawBuckets buckets);

  // The whole manifest as one bucket.
  static std::shared_ptr<const DrawPlan> Default(const PowerSgdOptions& options,
                                                 SharedManifest manifest);

  const DrawBuckets& buckets() const { return buckets_; }
  bool IsDefault() const;
  // The first call computes it, in time that grows with the manifest.
  const Table& Get() const;
  // Batched: which seed is for this bucket; none: it is not one of the plan's.
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

// A block of torch's normals for one bucket, computed when they are first needed: Q by Q in the
// layout's order, or those of one shape at once; with one round all P's follow.
FactorBlockRef DrawBlock(const PowerSgdOptions& options, std::shared_ptr<const FactorLayout> layout,
                         std::uint32_t seed, std::uint64_t state_version);

}  // namespace gradwire

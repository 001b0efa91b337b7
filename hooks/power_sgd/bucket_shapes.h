// What follows from a bucket's list of parameters, computed once for as long as members announce
// that list.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "hooks/power_sgd/factors.h"

namespace gradwire {

struct BucketShape {
  std::vector<std::uint32_t> positions;
  DType gradient = DType::kFloat32;
  BucketLayout layout;
  std::shared_ptr<const FactorLayout> factors{};
};

// The buckets of this step and of the one before. Buckets of one step have no parameter in common,
// so their first parameters name them.
class BucketShapes {
 public:
  // Both outlive this object.
  BucketShapes(const PowerSgdOptions& options, const std::vector<ParameterSpec>& manifest)
      : options_(options), manifest_(manifest) {}

  // InvalidArgument where PlanCast has it.
  absl::StatusOr<const BucketShape*> Use(BucketPositions bucket);

  // One that Use was called for in this step; null otherwise. Takes constant time.
  const BucketShape* Find(BucketPositions bucket) const;

  // The step is over. What it did not use is appended to `retired`, to be freed elsewhere.
  void EndStep(std::vector<std::shared_ptr<const void>>& retired);

 private:
  struct Entry {
    std::shared_ptr<const BucketShape> shape;
    bool used = false;  // in this step
  };

  const PowerSgdOptions& options_;
  const std::vector<ParameterSpec>& manifest_;
  std::unordered_map<std::uint32_t, Entry> entries_;  // by first parameter
};

}  // namespace gradwire

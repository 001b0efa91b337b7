// The layout of a bucket, which depends only on its list of parameters. It is computed once and
// kept while members announce that list.
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

// The buckets of this step and of the one before. Buckets of one step share no parameter, so the
// first parameter identifies a bucket.
class BucketShapes {
 public:
  // Both outlive this object.
  BucketShapes(const PowerSgdOptions& options, const std::vector<ParameterSpec>& manifest)
      : options_(options), manifest_(manifest) {}

  // The bucket's layout, computed if it is new. InvalidArgument as PlanCast.
  absl::StatusOr<const BucketShape*> Use(BucketPositions bucket);

  // The layout if Use was called for the bucket in this step, else null. Takes constant time.
  const BucketShape* Find(BucketPositions bucket) const;

  // The step is over. Layouts that it did not use are appended to `retired`, so that the caller can
  // free them without the session's lock.
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

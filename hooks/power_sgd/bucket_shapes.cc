#include "hooks/power_sgd/bucket_shapes.h"

#include <algorithm>
#include <utility>

#include "hooks/simple_hooks.h"

namespace gradwire {

// A step usually announces the buckets of the step before, so the layout is computed once per list
// of parameters. A list that only begins with the same parameter replaces the older one.
absl::StatusOr<const BucketShape*> BucketShapes::Use(BucketPositions bucket) {
  const auto found = bucket.empty() ? entries_.end() : entries_.find(bucket.front());
  if (found != entries_.end() &&
      std::equal(bucket.begin(), bucket.end(), found->second.shape->positions.begin(),
                 found->second.shape->positions.end())) {
    found->second.used = true;
    return found->second.shape.get();
  }
  const BucketParameters parameters(manifest_, bucket);
  if (const auto plain = PlanCast(options_.wire, parameters); !plain.ok()) return plain.status();
  auto shape = std::make_shared<BucketShape>();
  shape->positions.assign(bucket.begin(), bucket.end());
  shape->gradient = parameters.front().dtype;
  shape->layout = MakeLayout(options_, parameters);
  shape->factors = std::make_shared<FactorLayout>(options_, manifest_, bucket, shape->layout);
  const BucketShape* made = shape.get();
  entries_[bucket.front()] = {.shape = std::move(shape), .used = true};
  return made;
}

// Compares only the size: Use has already compared the list, and no other bucket of this step can
// begin with the same parameter.
const BucketShape* BucketShapes::Find(BucketPositions bucket) const {
  const auto found = entries_.find(bucket.front());
  const bool is_known = found != entries_.end() && found->second.used &&
                        found->second.shape->positions.size() == bucket.size();
  return is_known ? found->second.shape.get() : nullptr;
}

// The layouts go to `retired`, because freeing them under the session's lock would take time that
// grows with the number of parameters.
void BucketShapes::EndStep(std::vector<std::shared_ptr<const void>>& retired) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (std::exchange(it->second.used, false)) {
      ++it;
      continue;
    }
    retired.push_back(std::move(it->second.shape));
    it = entries_.erase(it);
  }
}

}  // namespace gradwire

// The stateless built-in hooks and the casting wrapper. Their buckets lie in `device`'s memory.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "gradwire/hooks/hook.h"
#include "hooks/bucket_parameters.h"
#include "hooks/device.h"

namespace gradwire {

// The rounds of a casting hook with that `wire`. InvalidArgument for no parameters, one that is not
// valid, and two of different dtypes.
absl::StatusOr<std::vector<RoundPlan>> PlanCast(std::optional<DType> wire,
                                                const BucketParameters& bucket);

// One round, one segment: the bucket cast to `wire` (nullopt: left in its own dtype), divided by
// the world size in that dtype, summed, cast back. torch's allreduce, fp16_compress and
// bf16_compress. Of a scattered bucket it makes a flat copy.
std::unique_ptr<Hook> MakeCastingHook(std::optional<DType> wire, std::shared_ptr<Device> device);

// No round: every member keeps its own gradients.
std::unique_ptr<Hook> MakeNoopHook();

// Runs `inner` on a flat copy of the bucket, cast to `wire` (nullopt: in its own dtype), and casts
// what it leaves there back into the bucket, which may be a scattered one. `inner` is planned with,
// and its bucket's buffer has, the wire dtype.
std::unique_ptr<Hook> MakeWrapper(std::optional<DType> wire, std::unique_ptr<Hook> inner,
                                  std::shared_ptr<Device> device);

}  // namespace gradwire

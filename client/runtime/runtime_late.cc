// A trainer that is late: the step that it is in went on without it, and may be over.
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/runtime/runtime.h"

namespace gradwire::client {

// The daemon has ended this step. Others may have reduced the bucket without this member; otherwise
// all parameters are in the step, and a further bucket would belong to the next one.
absl::Status Runtime::TakePast(const GradBucket& bucket) {
  const absl::StatusOr<bool> taken = member_.TakePast(over_.front().step, bucket);
  if (!taken.ok()) return taken.status();
  if (*taken) {
    MutexLock lock(shared_mutex_);
    metrics_.gradient_bytes += bucket.buffer().bytes();
    return absl::OkStatus();
  }
  return Coded(ErrorCode::kTwiceInStep,
               absl::InvalidArgumentError(
                   absl::StrCat("all parameters are in step ", step(),
                                " already; call EndStep before the next step's buckets")));
}

}  // namespace gradwire::client

#include "client/runtime/device_queue.h"

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "hooks/device_status.h"

namespace gradwire::client {

void DeviceQueue::RunFirst() {
  const std::function<void()> action = std::move(waiting_.front().action);
  waiting_.pop_front();
  action();
}

// A device that has failed counts as one that has done everything.
absl::Status DeviceQueue::Poll(Clock::time_point now) {
  while (!empty() && IsDone(waiting_.front().mark)) RunFirst();
  absl::Status status = StatusOf(device_);
  if (status.ok() && !empty() && now - waiting_.front().since > limit_) {
    gave_up_ = true;
    status = Coded(ErrorCode::kGpu,
                   absl::DeadlineExceededError(absl::StrCat(
                       Name(device_.id()), " did not finish the work of this session within ",
                       std::chrono::duration_cast<std::chrono::seconds>(limit_).count(),
                       " s; the GPU may be hung, or busy with another program")));
  }
  while (!status.ok() && !empty()) RunFirst();
  return status;
}

}  // namespace gradwire::client

#include "client/runtime/device_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/error_code.h"
#include "base/mutants.h"

namespace gradwire::client {

void DeviceCalls::RunFirst() {
  const std::function<void()> call = std::move(waiting_.front().call);
  waiting_.pop_front();
  call();
}

void DeviceCalls::RunAll() {
  while (!empty()) RunFirst();
}

absl::Status DeviceCalls::Poll(Clock::time_point now) {
  while (!empty()) {
    const Waiting& first = waiting_.front();
    DeviceError error;
    if (first.ready != nullptr && !IsActive(DeviceMutant::kGradientsNotAwaited) &&
        !first.ready->IsComplete(error)) {
      if (now - first.since <= limit_) return absl::OkStatus();
      return Coded(ErrorCode::kGpu,
                   absl::DeadlineExceededError(absl::StrCat(
                       "the CUDA stream did not compute the gradients of a bucket within ",
                       absl::FormatDuration(absl::FromChrono(limit_)), " after AllReduce")));
    }
    if (!error.text.empty()) return Coded(ErrorCode::kGpu, absl::InternalError(error.text));
    RunFirst();
  }
  return absl::OkStatus();
}

}  // namespace gradwire::client

// A device's error as the Status that hooks return.
#pragma once

#include "absl/status/status.h"
#include "base/error_code.h"
#include "hooks/device.h"

namespace gradwire {

// ResourceExhausted if the device's memory is used up, else Internal.
inline absl::Status StatusOf(const Device& device) {
  const DeviceError& error = device.error();
  if (error.text.empty()) return absl::OkStatus();
  return error.out_of_memory
             ? Coded(ErrorCode::kGpuMemory, absl::ResourceExhaustedError(error.text))
             : Coded(ErrorCode::kGpu, absl::InternalError(error.text));
}

}  // namespace gradwire

// Devices on the emulated GPU.
#pragma once

#include <memory>

#include "hooks/cuda/device.h"

namespace gradwire::testing {

// Waits end after a minute: nothing in a test should take as long.
inline std::shared_ptr<Device> MakeEmulatedDevice(std::int64_t wait_ms = 60'000) {
  return std::shared_ptr<Device>(gradwire_cuda_open(0, wait_ms));
}

}  // namespace gradwire::testing

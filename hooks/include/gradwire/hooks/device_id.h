// Where a tensor's memory lies.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace gradwire {

enum class DeviceKind : std::uint8_t {
  kCpu = 1,   // the host's memory
  kCuda = 2,  // that of a GPU
};

// Torch's names: "cpu", "cuda:0".
struct DeviceId {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;  // of the GPU, as the process sees them; 0 for the CPU

  bool operator==(const DeviceId&) const = default;
};

inline std::string Name(const DeviceId& device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

// The inverse of Name. Returns InvalidArgument with the value and what is allowed.
absl::StatusOr<DeviceId> ParseDevice(const std::string& name);

}  // namespace gradwire

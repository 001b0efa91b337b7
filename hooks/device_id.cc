#include "gradwire/hooks/device_id.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"

namespace gradwire {

absl::StatusOr<DeviceId> ParseDevice(const std::string& name) {
  if (name == "cpu") return DeviceId{};
  absl::string_view index = name;
  DeviceId device{.kind = DeviceKind::kCuda};
  if (absl::ConsumePrefix(&index, "cuda:") && absl::SimpleAtoi(index, &device.index) &&
      Name(device) == name && device.index >= 0) {
    return device;
  }
  return Coded(ErrorCode::kOption,
               absl::InvalidArgumentError(absl::StrCat("device: \"", name.substr(0, 40),
                                                       "\"; allowed: \"cpu\", \"cuda:0\" and up")));
}

}  // namespace gradwire

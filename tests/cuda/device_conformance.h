// What every device promises (hooks/device.h): the arithmetic of the host's, bit for bit where it
// is promised. One suite; an instance names the device.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "hooks/device.h"

namespace gradwire::conformance {

struct DeviceCase {
  std::string name;
  std::function<std::shared_ptr<Device>()> make;
};

inline void PrintTo(const DeviceCase& device, std::ostream* out) { *out << device.name; }

class DeviceConformance : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    device_ = GetParam().make();
    ASSERT_EQ(device_->error().text, "");
  }
  void TearDown() override { ASSERT_EQ(device_->error().text, ""); }
  Device& device() { return *device_; }

 private:
  std::shared_ptr<Device> device_;
};

inline std::string DeviceName(const ::testing::TestParamInfo<DeviceCase>& info) {
  return info.param.name;
}

}  // namespace gradwire::conformance

#include "gradwire/hooks/device_id.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

TEST(DeviceId, HasTorchsNames) {
  for (const char* name : {"cpu", "cuda:0", "cuda:7", "cuda:12"}) {
    const auto device = ParseDevice(name);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(Name(*device), name);
  }
  EXPECT_EQ(*ParseDevice("cuda:3"), (DeviceId{DeviceKind::kCuda, 3}));
}

TEST(DeviceId, OthersAreRefusedByName) {
  for (const char* name : {"", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:+1", "cuda:01", "cuda:1x",
                           "cuda: 1", "cpu:0", "CUDA:0", "cuda:99999999999"}) {
    const auto device = ParseDevice(name);
    EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(device.status().message(), ::testing::HasSubstr("\"cpu\", \"cuda:0\" and up"));
  }
}

}  // namespace
}  // namespace gradwire

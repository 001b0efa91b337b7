#include "server/core/queue_limits.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;

constexpr QueueLimits::Limits kLimits = {.max_bytes = 100, .max_frames = 3};

std::size_t None() { return 0; }

TEST(QueueLimits, FramesHaveALimit) {
  QueueLimits limits(kLimits);
  EXPECT_TRUE(limits.Add(2, 0, false, None).ok());
  const absl::Status refused = limits.Add(3, 0, false, None);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("more than 3 frames"));
}

TEST(QueueLimits, WhatTheSessionKeepsIsFree) {
  QueueLimits limits(kLimits);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(limits.Add(0, 60, false, None).ok());
}

TEST(QueueLimits, BytesThatOnlyQueuesHoldHaveALimit) {
  QueueLimits limits(kLimits);
  EXPECT_TRUE(limits.Add(0, 60, true, None).ok());
  const absl::Status refused = limits.Add(1, 60, true, [] { return std::size_t{60}; });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("more than 100 bytes"));
}

TEST(QueueLimits, CountsOnlyWhereTheLimitIsNear) {
  QueueLimits limits(kLimits);
  int counts = 0;
  const auto count = [&counts] {
    ++counts;
    return std::size_t{0};
  };
  EXPECT_TRUE(limits.Add(0, 90, true, count).ok());
  limits.Taken(90);
  EXPECT_TRUE(limits.Add(0, 90, true, count).ok());
  EXPECT_EQ(counts, 0);
  EXPECT_TRUE(limits.Add(1, 30, true, count).ok());
  EXPECT_EQ(counts, 1);
  EXPECT_TRUE(limits.Add(2, 10, true, count).ok()) << "less than a quarter was added since";
  EXPECT_EQ(counts, 1);
}

}  // namespace
}  // namespace gradwire::server

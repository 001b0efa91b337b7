#include "client/core/reading_limit.h"

#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

TEST(ReadingLimit, PausesAtTheLimitAndReadsOnAtHalf) {
  ReadingLimit limit(4);
  for (int i = 0; i < 3; ++i) limit.Added();
  EXPECT_FALSE(limit.pauses());
  EXPECT_FALSE(limit.reads_on());
  limit.Added();
  EXPECT_TRUE(limit.pauses());
  limit.Taken();
  EXPECT_FALSE(limit.reads_on()) << "it would pause again with the next frame";
  limit.Taken();
  EXPECT_TRUE(limit.reads_on());
}

TEST(ReadingLimit, OfOneFrameReadsOnWhenNoneWaits) {
  ReadingLimit limit(1);
  limit.Added();
  EXPECT_TRUE(limit.pauses());
  EXPECT_FALSE(limit.reads_on());
  limit.Taken();
  EXPECT_TRUE(limit.reads_on());
}

}  // namespace
}  // namespace gradwire::client

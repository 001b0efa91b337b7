#include "client/runtime/bucket_stats.h"

#include <limits>

#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using std::chrono::milliseconds;

class BucketStatsTest : public ::testing::Test {
 protected:
  BucketStats::Clock::time_point At(int ms) const { return start_ + milliseconds(ms); }

  // A reduction of 10 ms.
  std::optional<wire::BucketReport> Reduce(std::uint32_t bucket, int begin_ms,
                                           std::optional<BucketNorms> norms = std::nullopt) {
    stats_.Begin(bucket, 2, 400, At(begin_ms));
    stats_.Compressed(bucket, milliseconds(1), 100);
    stats_.Compressed(bucket, milliseconds(1), 60);
    stats_.Decompressed(bucket, milliseconds(3), 160);
    stats_.Reduced(bucket, milliseconds(1));
    return stats_.Done(bucket, norms, At(begin_ms + 10));
  }

  const BucketStats::Clock::time_point start_ = BucketStats::Clock::now();
  BucketStats stats_;
};

TEST_F(BucketStatsTest, WhatIsNeitherWorkNorReductionIsTheWire) {
  const auto report = Reduce(7, 0, BucketNorms{.gradient = 4, .residual = 3});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->bucket, 7U);
  EXPECT_EQ(report->parameters, 2U);
  EXPECT_EQ(report->reductions, 1U);
  EXPECT_EQ(report->gradient_bytes, 400U);
  EXPECT_EQ(report->sent_bytes, 160U);
  EXPECT_EQ(report->received_bytes, 160U);
  EXPECT_DOUBLE_EQ(report->compress_seconds, 0.002);
  EXPECT_DOUBLE_EQ(report->decompress_seconds, 0.003);
  EXPECT_DOUBLE_EQ(report->reduce_seconds, 0.001);
  EXPECT_DOUBLE_EQ(report->wire_seconds, 0.004);
  EXPECT_DOUBLE_EQ(report->gradient_norm, 4);
  EXPECT_DOUBLE_EQ(report->residual_norm, 3);
}

TEST_F(BucketStatsTest, WorkThatOverlapsTheFlightLeavesNoNegativeWire) {
  stats_.Begin(0, 1, 4, At(0));
  stats_.Reduced(0, milliseconds(30));
  EXPECT_EQ(stats_.Done(0, std::nullopt, At(10))->wire_seconds, 0);
}

TEST_F(BucketStatsTest, OneReportASecondAndBucket) {
  EXPECT_TRUE(Reduce(7, 0));
  EXPECT_FALSE(Reduce(7, 500));
  EXPECT_TRUE(Reduce(8, 500));
  EXPECT_FALSE(Reduce(7, 1009));
  const auto report = Reduce(7, 1020, BucketNorms{.gradient = 5, .residual = 1});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->reductions, 4U);
  EXPECT_EQ(report->gradient_bytes, 1600U);
  EXPECT_DOUBLE_EQ(report->wire_seconds, 0.016);
  EXPECT_DOUBLE_EQ(report->residual_norm, 1);
}

TEST_F(BucketStatsTest, NormsOnceInTenSecondsAndBucket) {
  EXPECT_TRUE(stats_.ShouldMeasure(7, At(0)));
  EXPECT_TRUE(Reduce(7, 0));  // its step was not compressed: no norms
  EXPECT_FALSE(stats_.ShouldMeasure(7, At(1009)));
  EXPECT_TRUE(stats_.ShouldMeasure(7, At(1010)));
  EXPECT_TRUE(Reduce(7, 1010, BucketNorms{.gradient = 4, .residual = 3}));
  EXPECT_TRUE(stats_.ShouldMeasure(8, At(1020)));
  EXPECT_FALSE(stats_.ShouldMeasure(7, At(2500)));
  EXPECT_DOUBLE_EQ(Reduce(7, 2500)->residual_norm, 3) << "a report has the last ones";
  EXPECT_FALSE(stats_.ShouldMeasure(7, At(11019)));
  EXPECT_TRUE(stats_.ShouldMeasure(7, At(11020)));
  stats_.Begin(7, 3, 600, At(4000));  // another bucket begins with the same parameter
  EXPECT_TRUE(stats_.ShouldMeasure(7, At(5000)));
}

TEST_F(BucketStatsTest, NormsOfASkippedStepAreNotTaken) {
  Reduce(7, 0, BucketNorms{.gradient = 4, .residual = 3});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto report = Reduce(7, 2000, BucketNorms{.gradient = nan, .residual = nan});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->gradient_norm, 4);
  EXPECT_EQ(report->residual_norm, 3);
  Reduce(8, 0, BucketNorms{.gradient = nan, .residual = nan});
  EXPECT_TRUE(stats_.ShouldMeasure(8, At(1010)));
}

TEST_F(BucketStatsTest, BucketsThatWereRebuiltAreForgotten) {
  Reduce(0, 0);
  Reduce(5, 0);
  stats_.EndStep();
  EXPECT_EQ(stats_.All().size(), 2U);
  Reduce(5, 20);
  stats_.EndStep();
  ASSERT_EQ(stats_.All().size(), 1U);
  EXPECT_EQ(stats_.All()[0].reductions, 2U);
  stats_.Begin(5, 3, 600, At(40));  // begins with the same parameter
  EXPECT_EQ(stats_.All()[0].reductions, 0U);
  EXPECT_EQ(stats_.All()[0].gradient_bytes, 600U);
}

TEST_F(BucketStatsTest, FramesOfBucketsThatAreNotOpenCountForNothing) {
  stats_.Compressed(3, milliseconds(1), 10);
  EXPECT_FALSE(stats_.Done(3, std::nullopt, At(0)));
  EXPECT_TRUE(stats_.All().empty());
  Reduce(3, 0);
  stats_.Decompressed(3, milliseconds(1), 10);  // a result that is repeated after a resume
  EXPECT_EQ(stats_.All()[0].received_bytes, 160U);
}

}  // namespace
}  // namespace gradwire::client

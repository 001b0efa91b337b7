// A step's buckets, and its commit in two moments.
#include "client/core/open_step.h"

#include "client/core/bucket_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class OpenStepTest : public EffectsTest {
 protected:
  OpenStepTest() : EffectsTest(AtStep3()) {}

  static MemberOptions AtStep3() {
    MemberOptions options = SmallOptions();
    options.step = 3;
    return options;
  }

  BucketRun& Start(const std::vector<std::size_t>& parameters) {
    const auto run = step_.Start(++ticket_, Bucket(parameters), {}, {});
    EXPECT_TRUE(run.ok()) << run.status();
    return **run;
  }
  // All that the open round still lacks.
  void Reduce(BucketRun& run) {
    while (!run.is_round_complete()) {
      EXPECT_TRUE(run.TakeResult(*Bytes(run.layout().ChunkBytes(run.received()))).ok());
    }
    Effects effects;
    EXPECT_TRUE(step_.Advance(run, {}, effects).ok());
    Take(std::move(effects));
  }

  OpenStep step_{options_, &hook_};
  Ticket ticket_ = 0;
};

TEST_F(OpenStepTest, HoldsItsResultsWithTheLastBucketAndCommitsOnlyWhenConcluded) {
  BucketRun& small = Start({0});
  BucketRun& large = Start({1});
  EXPECT_EQ(step_.Find(1), &large);
  EXPECT_EQ(step_.unfinished(), 2U);
  Reduce(large);
  EXPECT_FALSE(step_.holds_results());
  EXPECT_EQ(step_.FirstUnfinished(), &small);
  Reduce(small);
  EXPECT_TRUE(step_.holds_results());
  EXPECT_THAT(Drain<BucketDoneEffect>(), SizeIs(2));
  EXPECT_EQ(hook_.commits, 0);
  Effects effects;
  step_.Conclude({.verdict = Verdict::kApply}, effects);
  EXPECT_EQ(hook_.commits, 2);
  ASSERT_THAT(effects, SizeIs(1));
  EXPECT_EQ(std::get<StepDoneEffect>(effects[0]).step, 3);
  EXPECT_EQ(step_.number(), 4);
  EXPECT_TRUE(step_.empty());
  Start({0});  // the parameters are free again
}

TEST_F(OpenStepTest, ASkippedStepLeavesTheHookAlone) {
  Reduce(Start({0}));
  Effects effects;
  step_.Conclude({.verdict = Verdict::kSkip}, effects);
  EXPECT_EQ(hook_.commits, 0);
  EXPECT_EQ(hook_.aborts, 1);
  EXPECT_EQ(step_.number(), 4);
}

TEST_F(OpenStepTest, AFailureEndsAllRunsAndTellsThoseThatWait) {
  Reduce(Start({0}));
  Drain<BucketDoneEffect>();
  Start({1});
  Effects effects;
  step_.Abort(absl::AbortedError("lost"), effects);
  EXPECT_EQ(hook_.aborts, 2);
  ASSERT_THAT(effects, SizeIs(1));
  EXPECT_EQ(std::get<BucketDoneEffect>(effects[0]).bucket, 1U);
  EXPECT_EQ(std::get<BucketDoneEffect>(effects[0]).status, absl::AbortedError("lost"));
}

TEST_F(OpenStepTest, ARefusedBucketLeavesItAsItWas) {
  Start({0});
  EXPECT_THAT(step_.Start(2, Bucket({1, 0}), {}, {}).status().message(),
              HasSubstr("parameter w is in step 3 already"));
  EXPECT_EQ(step_.unfinished(), 1U);
  Start({1});
}

TEST_F(OpenStepTest, ANewStateComesBetweenStepsAndMayBeRepeated) {
  EXPECT_TRUE(step_.ResetState(7));
  Start({0});
  EXPECT_TRUE(step_.ResetState(7));
  EXPECT_FALSE(step_.ResetState(8));
}

}  // namespace
}  // namespace gradwire::client

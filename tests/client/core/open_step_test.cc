// A step's buckets, and its commit in two moments.
#include "client/core/open_step.h"

#include <algorithm>
#include <span>
#include <vector>

#include "client/core/bucket_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/cpu/host_device.h"
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
  EXPECT_FALSE(step_.has_begun());
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

class KeepingStepTest : public OpenStepTest {
 protected:
  GradBucket& Keep(const std::vector<std::size_t>& parameters) {
    GradBucket& bucket = Bucket(parameters);
    EXPECT_TRUE(keeping_.Start(++ticket_, bucket, {.keep = true}, {}).ok());
    return bucket;
  }
  // With zeros.
  void ReduceIn(BucketRun& run) {
    while (!run.is_round_complete()) {
      EXPECT_TRUE(run.TakeResult(*Bytes(run.layout().ChunkBytes(run.received()))).ok());
    }
    Effects effects;
    EXPECT_TRUE(keeping_.Advance(run, {}, effects).ok());
    Take(std::move(effects));
  }
  static std::vector<float> Values(const GradBucket& bucket) {
    const auto* const first = static_cast<const float*>(bucket.buffer().data);
    return {first, first + bucket.buffer().numel};
  }
  // What the run would send.
  static std::vector<float> Sent(BucketRun& run) {
    std::vector<float> sent;
    while (run.has_unsent()) {
      const BucketRun::Chunk chunk = run.HandOut();
      std::vector<float> values(chunk.bytes / sizeof(float));
      EXPECT_TRUE(chunk.run->Encode(chunk.range, std::as_writable_bytes(std::span(values))).ok());
      sent.insert(sent.end(), values.begin(), values.end());
    }
    return sent;
  }

  static MemberOptions Keeping(MemberOptions options) {
    options.device = MakeHostDevice();
    return options;
  }

  const MemberOptions keeps_ = Keeping(options_);
  OpenStep keeping_{keeps_, &hook_};
};

TEST_F(KeepingStepTest, ABucketWithSomeResultsBeginsAgainWithItsGradients) {
  GradBucket& bucket = Keep({1});
  BucketRun& first = *keeping_.Find(1);
  ASSERT_TRUE(first.TakeResult(*Bytes(64)).ok());
  EXPECT_EQ(Values(bucket)[0], 0);
  const auto again = keeping_.StartAgain(1, {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(keeping_.Find(1), *again);
  EXPECT_EQ(hook_.aborts, 1);
  EXPECT_EQ(keeping_.unfinished(), 1U);
  EXPECT_EQ(Sent(**again), std::vector<float>(40, 1.0F));
  EXPECT_EQ(Values(bucket)[20], 1) << "the caller's memory waits for the results";
  ReduceIn(**again);
  EXPECT_EQ(Values(bucket), std::vector<float>(40, 0.0F));
  EXPECT_THAT(Drain<BucketDoneEffect>(), SizeIs(1));
  EXPECT_TRUE(keeping_.holds_results());
}

// The caller has clipped the gradients meanwhile.
TEST_F(KeepingStepTest, ABucketThatIsDoneIsReducedAgainBesideTheCallersMemory) {
  GradBucket& bucket = Keep({0});
  ReduceIn(*keeping_.Find(0));
  EXPECT_THAT(Drain<BucketDoneEffect>(), SizeIs(1));
  std::fill_n(static_cast<float*>(bucket.buffer().data), 16, 5.0F);
  for (int lost = 0; lost < 2; ++lost) {
    const auto again = keeping_.StartAgain(0, {});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_FALSE(keeping_.holds_results());
    EXPECT_EQ(Sent(**again), std::vector<float>(16, 1.0F));
    ReduceIn(**again);
    EXPECT_TRUE(keeping_.holds_results());
  }
  EXPECT_THAT(Drain<BucketDoneEffect>(), IsEmpty());
  EXPECT_EQ(Values(bucket), std::vector<float>(16, 5.0F));
  Effects effects;
  keeping_.Conclude({.step = 3, .verdict = Verdict::kApply}, effects);
  EXPECT_EQ(hook_.commits, 1);
  EXPECT_EQ(hook_.aborts, 2);
  ASSERT_THAT(effects, SizeIs(1));
}

// Those that wait are done, once.
TEST_F(KeepingStepTest, AStepThatIsReducedAgainMayBeDroppedAllTheSame) {
  Keep({0});
  Keep({1});
  ReduceIn(*keeping_.Find(0));
  Drain<BucketDoneEffect>();
  ASSERT_TRUE(keeping_.StartAgain(0, {}).ok());
  Effects effects;
  keeping_.Drop({.step = 3, .verdict = Verdict::kSkip, .dropped = true}, effects);
  Take(std::move(effects));
  const auto done = Drain<BucketDoneEffect>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].bucket, 1U);
  Keep({0, 1});  // memory of other buckets is used again, or not
  EXPECT_EQ(Sent(**keeping_.StartAgain(0, {})), std::vector<float>(56, 1.0F));
}

TEST_F(KeepingStepTest, GradientsThatLieScatteredComeBackToTheirPlaces) {
  std::vector<float> memory(100, 7.0F);
  std::fill_n(memory.begin() + 10, 16, 1.0F);
  std::fill_n(memory.begin() + 50, 40, 2.0F);
  GradBucket bucket =
      *GradBucket::MakeScattered(0, {DType::kFloat32, memory.data(), memory.size()},
                                 {options_.manifest[0], options_.manifest[1]}, {10, 50});
  KeptGradients kept(MakeHostDevice());
  kept.Keep(0, bucket, {});
  std::ranges::fill(memory, 9.0F);
  const auto again = kept.Again(0);
  ASSERT_TRUE(again.ok()) << again.status();
  std::vector<float> values(16, 1.0F);
  values.resize(56, 2.0F);
  EXPECT_EQ(Values(**again), values);
  kept.GiveBack(0);
  EXPECT_EQ(std::ranges::count(memory, 9.0F), 44);
  EXPECT_EQ(memory[10], 1);
  EXPECT_EQ(memory[89], 2);
}

// Each shard keeps its own part, and the others have put results into theirs.
TEST(KeptGradientsTest, OnlyTheSliceIsKeptAndGivenBack) {
  std::vector<float> memory(5000, 1.0F);
  const ParameterSpec whole{.name = "w", .shape = {5000}, .dtype = DType::kFloat32};
  GradBucket bucket =
      *GradBucket::Make(0, {DType::kFloat32, memory.data(), memory.size()}, {whole});
  const Slice slice{.part = 1, .parts = 3};
  const auto [first, last] = slice.Of(memory.size());
  KeptGradients kept(MakeHostDevice());
  kept.Keep(0, bucket, slice);
  std::ranges::fill(memory, 9.0F);
  const auto again = kept.Again(0);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ((*again)->buffer().numel, memory.size());
  auto* const values = static_cast<float*>((*again)->buffer().data);
  EXPECT_EQ(std::count(values + first, values + last, 1.0F), last - first);
  std::fill(values + first, values + last, 2.0F);
  kept.GiveBack(0);
  EXPECT_EQ(std::ranges::count(memory, 2.0F), last - first);
  EXPECT_EQ(memory[first], 2);
  EXPECT_EQ(memory[last - 1], 2);
}

TEST_F(OpenStepTest, ANewStateComesBetweenStepsAndMayBeRepeated) {
  EXPECT_TRUE(step_.ResetState(7));
  Start({0});
  EXPECT_TRUE(step_.ResetState(7));
  EXPECT_FALSE(step_.ResetState(8));
}

}  // namespace
}  // namespace gradwire::client

// A member that others do not wait for: what it takes, what it says, and what its trainer gets.
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/cpu/host_device.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

MemberOptions Options(bool misses_early) {
  MemberOptions options = SmallOptions();
  options.device = MakeHostDevice();
  options.misses_early = misses_early;
  return options;
}

wire::PayloadRef Floats(std::size_t count, float value) {
  const std::vector<float> values(count, value);
  std::vector<std::byte> bytes(count * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return wire::OwnedPayload::Make(std::move(bytes));
}

// Others reduce bucket w, of 16 ones each, to a mean of 5.
class MemberLate : public MemberTest {
 protected:
  explicit MemberLate(bool misses_early = true) : MemberTest(Options(misses_early)) {
    Receive(wire::Welcome{
        .recovery = wire::Recovery{.session_key = "k", .roster = wire::Roster{.ranks = {0, 1}}}});
    Drain<WelcomeEffect>();
  }

  void Miss(std::int64_t step = 0) {
    Receive(wire::Missed{.id = {.step = step, .bucket = 0}, .parameters = {0}});
  }
  void TakeResult(std::int64_t step = 0) {
    Receive(wire::Result{.id = {.step = step, .bucket = 0}}, Floats(16, 5));
  }
  void Conclude(std::int64_t step, Verdict verdict = Verdict::kApply, bool dropped = false) {
    Receive(wire::StepDone{.step = step, .verdict = verdict, .dropped = dropped});
    EXPECT_EQ(member_->step(), step + 1) << Message();
  }
  // Of the next step: what the hook gets of w.
  float Next() {
    effects_.clear();
    GradBucket& bucket = Bucket({0});
    EXPECT_TRUE(StartBucket(bucket).ok());
    return *static_cast<const float*>(bucket.buffer().data);
  }
  const std::vector<float>& Last() const { return buffers_.back(); }
};

TEST_F(MemberLate, PromisesNotToAnnounceTheBucket) {
  Miss();
  const auto acks = DrainSent<wire::Ack>();
  ASSERT_THAT(acks, SizeIs(1));
  EXPECT_EQ(acks[0].received, 0U);
  ASSERT_TRUE(Start({0}).ok());
  EXPECT_THAT(DrainSent<wire::Announce>(), IsEmpty());
  Miss();  // on a new stream
  EXPECT_THAT(DrainSent<wire::Ack>(), SizeIs(1));
  Effects effects;
  member_->Resumed(effects);
  Take(std::move(effects));
  EXPECT_THAT(DrainSent<wire::Announce>(), IsEmpty());
}

TEST_F(MemberLate, IgnoresItForWhatItHasAnnounced) {
  ASSERT_TRUE(Start({0}).ok());
  effects_.clear();
  Miss();
  EXPECT_THAT(effects_, IsEmpty());
  Grant(0);
  EXPECT_THAT(Drain<SendChunkEffect>(), SizeIs(1));
  TakeResult();
  Conclude(0);
  EXPECT_EQ(Next(), 1);
}

TEST_F(MemberLate, TheTrainerGetsTheResultAndItsGradientCountsInTheNextStep) {
  Miss();
  TakeResult();
  EXPECT_EQ(DrainSent<wire::Ack>().back().received, 1U);
  ASSERT_TRUE(Start({0}).ok());
  EXPECT_THAT(Drain<BucketDoneEffect>(), SizeIs(1));
  EXPECT_THAT(Last(), Each(5));
  Conclude(0);
  EXPECT_EQ(hook_.commits, 1);
  EXPECT_EQ(member_->missed_steps(), 1);
  EXPECT_EQ(Next(), 2);
}

TEST_F(MemberLate, TheTrainerMayComeBeforeTheResult) {
  Miss();
  ASSERT_TRUE(Start({0}).ok());
  EXPECT_THAT(Drain<BucketDoneEffect>(), IsEmpty());
  TakeResult();
  EXPECT_THAT(Drain<BucketDoneEffect>(), SizeIs(1));
  EXPECT_THAT(Last(), Each(5));
  Conclude(0);
  EXPECT_EQ(Next(), 2);
}

TEST_F(MemberLate, OrWhenTheStepIsOver) {
  Miss();
  TakeResult();
  Conclude(0);
  EXPECT_FALSE(*member_->TakePast(0, Bucket({1})));
  EXPECT_TRUE(*member_->TakePast(0, Bucket({0})));
  EXPECT_THAT(Last(), Each(5));
  EXPECT_FALSE(*member_->TakePast(0, Bucket({0})));  // once
  EXPECT_TRUE(member_->EndPast(0).ok());
  EXPECT_EQ(Next(), 2);
}

TEST_F(MemberLate, ASkippedStepIsLostForAll) {
  Miss();
  TakeResult();
  Conclude(0, Verdict::kSkip);
  EXPECT_TRUE(*member_->TakePast(0, Bucket({0})));
  EXPECT_EQ(Next(), 1);
}

// Others may have a result without this member, which has no gradient or has given it away.
TEST_F(MemberLate, TellsTheNextDaemonThatItCannotContribute) {
  Miss();
  wire::MemberReport report = member_->Report();
  EXPECT_TRUE(report.has_contributed);
  EXPECT_TRUE(report.may_have_results);
  EXPECT_FALSE(report.keeps_gradients);
  ASSERT_TRUE(Start({0}).ok());
  EXPECT_FALSE(member_->Report().keeps_gradients);
  member_->Rejoined(8);
  Conclude(0, Verdict::kSkip, /*dropped=*/true);
  EXPECT_THAT(Drain<BucketDoneEffect>(), SizeIs(1));
  EXPECT_EQ(member_->missed_steps(), 0);
  report = member_->Report();
  EXPECT_FALSE(report.has_contributed);
  EXPECT_TRUE(report.keeps_gradients);
}

TEST_F(MemberLate, OtherBucketsThanTheOthersAreAnError) {
  Miss();
  EXPECT_THAT(Start({2, 0}).message(), HasSubstr("parameter w is in a bucket that begins with e"));
  Effects effects;
  EXPECT_THAT(member_->EndStep(effects).message(),
              HasSubstr("ended without the bucket that begins with w"));
  TakeResult();
  Conclude(0);
  EXPECT_FALSE(member_->EndPast(0).ok());
}

TEST_F(MemberLate, KnowsWhatItsTrainerHasBegun) {
  Miss();
  Effects effects;
  EXPECT_TRUE(member_->CheckParameters(1, effects).ok());  // before the step, to the trainer
  TakeResult();
  Conclude(0);
  EXPECT_FALSE(member_->HasBegunPast(0));
  EXPECT_TRUE(*member_->TakePast(0, Bucket({0})));
  EXPECT_TRUE(member_->HasBegunPast(0));
}

// Others may apply a step in which it has a part, and go on without telling it.
class MemberNewcomer : public MemberTest {
 protected:
  MemberNewcomer() : MemberTest(Options(/*misses_early=*/true)) {
    Receive(wire::Welcome{
        .step = 4,
        .recovery = wire::Recovery{.session_key = "k", .roster = wire::Roster{.ranks = {0, 1}}},
        .change = wire::MembershipChange{.newcomers = {0}, .root = 1}});
    effects_.clear();
  }
};

TEST_F(MemberNewcomer, TakesNothingFromAMemberThatLeaves) {
  Receive(wire::HandOver{.id = 1, .rank = 1, .bytes = 8},
          wire::OwnedPayload::Make(std::vector<std::byte>(8)));
  const auto answers = DrainSent<wire::HandOverAnswer>();
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_THAT(answers[0].refusal, HasSubstr("is new, and has applied no step yet"));
}

// With a hook that keeps residuals, which the trainer may scale before it begins the step.
class MemberWithState : public MemberLate {
 protected:
  MemberWithState() : MemberLate(false) {}
};

TEST_F(MemberWithState, MissesNothingBeforeItsTrainerHasBegun) {
  Miss();
  EXPECT_THAT(DrainSent<wire::Ack>(), IsEmpty());
  ASSERT_TRUE(Start({1}).ok());
  EXPECT_THAT(DrainSent<wire::Ack>(), SizeIs(1));
  ASSERT_TRUE(Start({0}).ok());
  EXPECT_THAT(DrainSent<wire::Announce>(), IsEmpty());
}

TEST_F(MemberWithState, AnnouncesWhatItBeginsWith) {
  Miss();
  ASSERT_TRUE(Start({0}).ok());
  EXPECT_THAT(DrainSent<wire::Announce>(), SizeIs(1));
  Miss();
  EXPECT_THAT(DrainSent<wire::Ack>(), IsEmpty());
}

}  // namespace
}  // namespace gradwire::client

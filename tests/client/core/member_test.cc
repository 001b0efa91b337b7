// The member's side of the protocol, with a coordinator that is played by hand.
#include "client/core/member.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(MemberTest, IsWelcomedOnceEvenIfTheFirstWelcomeWasLost) {
  Receive(wire::Welcome{.resumed = true});
  EXPECT_THAT(Drain<WelcomeEffect>(), SizeIs(1));
  Receive(wire::Welcome{});
  EXPECT_THAT(Drain<WelcomeEffect>(), IsEmpty());
}

TEST_F(MemberTest, ABucketIsDoneWithItsLastResultAndCommittedWithTheStep) {
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  Drain<SendFrameEffect>();
  Result(0, 0);
  const std::vector<Effect> effects = effects_;
  EXPECT_THAT(Drain<BucketDoneEffect>(), SizeIs(1));
  effects_ = effects;
  const auto acks = DrainSent<wire::Ack>();
  ASSERT_THAT(acks, SizeIs(1));
  EXPECT_EQ(acks[0].received, 1U);
  EXPECT_EQ(hook_.commits, 0);
  Receive(wire::StepDone{.step = 0});
  EXPECT_EQ(hook_.commits, 1);
  EXPECT_EQ(member_->step(), 1);
  ASSERT_THAT(Drain<StepDoneEffect>(), SizeIs(1));
}

TEST_F(MemberTest, ASkippedStepLeavesTheStateAlone) {
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  Result(0, 0);
  Receive(wire::StepDone{.step = 0, .verdict = Verdict::kSkip});
  EXPECT_EQ(hook_.commits, 0);
  EXPECT_EQ(hook_.aborts, 1);
  EXPECT_EQ(Drain<StepDoneEffect>().at(0).verdict, Verdict::kSkip);
}

TEST_F(MemberTest, RefusesBucketsThatDoNotFit) {
  EXPECT_THAT(StartBucket(Bucket({{"x", {4}, DType::kFloat32}}, 4)).message(),
              HasSubstr("parameter x is not among the session's 3 parameters"));
  EXPECT_THAT(StartBucket(Bucket({{"w", {4, 4}, DType::kFloat32}}, 16)).message(),
              HasSubstr("parameter w has another shape or dtype than it had at Join"));
  EXPECT_THAT(Start({0, 0}).message(), HasSubstr("parameter w is in step 0 already"));
  ASSERT_TRUE(Start({0}).ok());
  EXPECT_THAT(Start({1, 0}).message(), HasSubstr("parameter w is in step 0 already"));
  ASSERT_TRUE(Start({1}).ok());
  EXPECT_FALSE(member_->failed());
}

TEST_F(MemberTest, EndStepEndsIt) {
  Effects effects;
  ASSERT_TRUE(member_->EndStep(effects).ok());
  EXPECT_THAT(member_->EndStep(effects).message(), HasSubstr("step 0 was ended before"));
  EXPECT_THAT(Start({0}).message(), HasSubstr("step 0 was ended by this member"));
  Receive(wire::StepDone{.step = 0});
  EXPECT_TRUE(Start({0}).ok());
}

// Of whoever leaves, others may need to learn how the last step ended.
TEST_F(MemberTest, SaysItsStepIfItIsAsked) {
  Receive(wire::Heartbeat{});
  EXPECT_THAT(DrainSent<wire::Heartbeat>(), ::testing::IsEmpty());
  Receive(wire::Heartbeat{.asks = true});
  EXPECT_THAT(DrainSent<wire::Heartbeat>(), ::testing::ElementsAre(wire::Heartbeat{.step = 0}));
  Effects effects;
  ASSERT_TRUE(member_->EndStep(effects).ok());
  Receive(wire::StepDone{.step = 0});
  Receive(wire::Heartbeat{.asks = true});
  EXPECT_THAT(DrainSent<wire::Heartbeat>(), ::testing::ElementsAre(wire::Heartbeat{.step = 1}));
}

// A thread of the trainer's may go on between the hand-over and the Leave.
TEST_F(MemberTest, TakesResidualsAgainIfItGoesOnAfterAHandOver) {
  const auto refusal = [this] {
    Receive(wire::HandOver{.generation = 7, .id = 1, .rank = 0, .bytes = 40}, Bytes(8));
    return DrainSent<wire::HandOverAnswer>().at(0).refusal;
  };
  Effects effects;
  const auto hand_over = [&] {
    member_->HandOver(2, std::vector<std::byte>(40), effects);
    member_->CancelHandOver();
  };
  EXPECT_EQ(refusal(), "");
  hand_over();
  EXPECT_EQ(refusal(), "rank 1 leaves, too");
  ASSERT_TRUE(member_->EndStep(effects).ok());
  EXPECT_EQ(refusal(), "");
  Receive(wire::StepDone{.step = 0});
  hand_over();
  EXPECT_EQ(refusal(), "rank 1 leaves, too");
  ASSERT_TRUE(Start({0}).ok());
  EXPECT_EQ(refusal(), "");
  Receive(wire::StepDone{.step = 1, .verdict = Verdict::kSkip, .dropped = true});
  hand_over();
  EXPECT_EQ(refusal(), "rank 1 leaves, too");
  ASSERT_TRUE(member_->Enter(wire::CollectiveKind::kBarrier, 0, 0, effects).ok());
  EXPECT_EQ(refusal(), "");
}

// The coordinator cannot know that it arrived until it hears of the step's first bucket.
TEST_F(MemberTest, ANewStateMayBeRepeatedButNotComeInTheMiddle) {
  Receive(wire::StateReset{.iteration = 3});
  ASSERT_TRUE(Start({0}).ok());
  Receive(wire::StateReset{.iteration = 3});
  EXPECT_FALSE(member_->failed()) << Message();
  Receive(wire::StateReset{.iteration = 4});
  EXPECT_THAT(Message(), HasSubstr("a new state in the middle"));
}

TEST_F(MemberTest, AcknowledgesWhatIsRepeatedFromTheStepBefore) {
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  Result(0, 0);
  Receive(wire::StepDone{.step = 0});
  Drain<SendFrameEffect>();
  Result(0, 0);
  EXPECT_EQ(DrainSent<wire::Ack>().at(0).received, 1U);
  Receive(wire::StepDone{.step = 0});
  Grant(0);
  EXPECT_EQ(member_->step(), 1);
  EXPECT_FALSE(member_->failed());
}

TEST_F(MemberTest, AFailureEndsEverythingWithTheSameStatus) {
  ASSERT_TRUE(Start({0}).ok());
  ASSERT_TRUE(Start({1}).ok());
  Receive(wire::Failure{.code = 10, .message = "rank 0 was lost", .blamed_rank = 0});
  EXPECT_EQ(member_->failure(), absl::AbortedError("rank 0 was lost"));
  EXPECT_EQ(hook_.aborts, 2);
  const std::vector<Effect> effects = effects_;
  for (const BucketDoneEffect& done : Drain<BucketDoneEffect>()) {
    EXPECT_EQ(done.status, member_->failure());
  }
  effects_ = effects;
  EXPECT_THAT(Drain<FailedEffect>(), SizeIs(1));
  EXPECT_EQ(Start({2}), member_->failure());
  Grant(0);
  EXPECT_THAT(effects_, IsEmpty());
}

TEST_F(MemberTest, AnUnknownCodeIsUnknown) {
  Receive(wire::Failure{.code = 99, .message = "?", .blamed_rank = -1});
  EXPECT_EQ(member_->failure().code(), absl::StatusCode::kUnknown);
}

TEST_F(MemberTest, ADecodeErrorFailsTheMember) {
  hook_.decode_status = absl::DataLossError("broken");
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  Result(0, 0);
  EXPECT_EQ(Message(), "broken");
}

TEST_F(MemberTest, NamesWhatACoordinatorMayNotSend) {
  const std::vector<std::pair<wire::Frame, std::string>> cases = {
      {{wire::Grant{{.bucket = 5}}}, "a grant for unknown bucket 5 in step 0"},
      {{wire::Grant{{.step = 1, .bucket = 1}}}, "a grant for unknown bucket 1"},
      {{wire::Result{.id = {.bucket = 5}}}, "a result for unknown bucket 5"},
      {{wire::Result{.id = {.bucket = 1}, .chunk = 1}, Bytes(64)},
       "result 1 of bucket 1 round 0 out"},
      {{wire::Result{.id = {.bucket = 1, .round = 1}}, Bytes(64)},
       "result 0 of bucket 1 round 1 out"},
      {{wire::Result{.id = {.bucket = 1}}, Bytes(60)}, "result 0 of bucket 1 with 60 bytes"},
      {{wire::Result{.id = {.bucket = 1}}}, "result 0 of bucket 1 with 0 bytes"},
      {{wire::StepDone{.step = 0}}, "the end of step 0 before its last result"},
      {{wire::StepDone{.step = 1}}, "the end of step 1 before its last result"},
      {{wire::Restart{.step = 1}}, "a restart of step 1"},
      {{wire::Restart{.open = {{.bucket = 1, .round = 2}}}}, "a restart of round 2 of bucket 1"},
      {{wire::Announce{}}, "a frame that only a member may send"},
  };
  for (const auto& [frame, message] : cases) {
    Member member(options_, &hook_);
    std::vector<float> buffer(40);
    GradBucket bucket =
        *GradBucket::Make(0, {DType::kFloat32, buffer.data(), 40}, {options_.manifest[1]});
    Effects effects;
    ASSERT_TRUE(member.StartBucket(1, bucket, effects).ok());
    member.Receive({wire::Grant{{.bucket = 1}}}, effects);
    member.Receive(frame, effects);
    EXPECT_EQ(member.failure().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(member.failure().message(), HasSubstr("the coordinator sent " + message));
  }
}

TEST_F(MemberTest, ProgressNamesTheOpenBucket) {
  EXPECT_EQ(member_->Progress(), "step 0: no bucket is open here");
  ASSERT_TRUE(Start({1}).ok());
  EXPECT_EQ(member_->Progress(), "step 0: bucket of b has 0 of 3 results, not granted");
  Grant(1);
  Result(1, 0);
  EXPECT_EQ(member_->Progress(), "step 0: bucket of b has 1 of 3 results, granted");
}

class ComparingMemberTest : public MemberTest {
 protected:
  ComparingMemberTest()
      : MemberTest([] {
          MemberOptions options = SmallOptions();
          options.parameter_digests = true;
          return options;
        }()) {}

  absl::Status Check(std::uint64_t digest) {
    Effects effects;
    absl::Status status = member_->CheckParameters(digest, effects);
    Take(std::move(effects));
    return status;
  }
};

TEST_F(ComparingMemberTest, TellsItsParametersBeforeTheFirstBucketAndAgainAfterAResume) {
  ASSERT_TRUE(Check(5).ok());
  const wire::ParameterDigest expected{.step = 0, .generation = 7, .digest = 5};
  EXPECT_THAT(DrainSent<wire::ParameterDigest>(), testing::ElementsAre(expected));
  ASSERT_TRUE(Start({0}).ok());
  EXPECT_THAT(Check(5).message(), HasSubstr("in the middle of step 0"));
  EXPECT_THAT(DrainSent<wire::ParameterDigest>(), IsEmpty());
  Effects effects;
  member_->Resumed(effects);
  ASSERT_THAT(effects, SizeIs(2));
  EXPECT_EQ(std::get<wire::ParameterDigest>(std::get<SendFrameEffect>(effects[0]).header), expected)
      << "before the bucket";

  Grant(0);
  Result(0, 0);
  Receive(wire::StepDone{.step = 0, .drift = "the others differ"});
  EXPECT_EQ(Drain<StepDoneEffect>().at(0).drift, "the others differ");
  effects.clear();
  member_->Resumed(effects);
  EXPECT_THAT(effects, IsEmpty()) << "it was of the step before";
}

TEST_F(MemberTest, AnEarlierDaemonIsNotAskedToCompareParameters) {
  Effects effects;
  EXPECT_TRUE(member_->CheckParameters(5, effects).ok());
  EXPECT_THAT(effects, IsEmpty());
}

}  // namespace
}  // namespace gradwire::client

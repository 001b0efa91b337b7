// The member's side of the protocol, with a coordinator that is played by hand.
#include "client/core/member.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"
#include "tests/client/member_fixture.h"

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

TEST_F(MemberTest, SendsNothingBeforeItsGrantAndThenTheWindow) {
  ASSERT_TRUE(Start({1}).ok());
  const auto announced = DrainSent<wire::Announce>();
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_EQ(announced[0].parameters, std::vector<std::uint32_t>{1});
  EXPECT_EQ(announced[0].generation, 7U);
  Grant(1);
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(2));
  EXPECT_EQ(chunks[1].header.chunk, 1U);
  EXPECT_EQ(chunks[1].header.rank, 1);
  EXPECT_EQ(chunks[1].bytes, 64U);
  Result(1, 0);
  const auto more = Drain<SendChunkEffect>();
  ASSERT_THAT(more, SizeIs(1));
  EXPECT_EQ(more[0].header.chunk, 2U);
  EXPECT_EQ(more[0].header.received, 1U);
  EXPECT_EQ(more[0].bytes, 32U);
  Grant(1);  // once is enough
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
}

TEST_F(MemberTest, ABucketIsDoneWithItsLastResultAndCommittedWithTheStep) {
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  Drain<SendEffect>();
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
  EXPECT_THAT(StartSpecs({{"x", {4}, DType::kFloat32}}, 4).message(),
              HasSubstr("parameter x is not among the session's 3 parameters"));
  EXPECT_THAT(StartSpecs({{"w", {4, 4}, DType::kFloat32}}, 16).message(),
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

TEST_F(MemberTest, RoundsWithoutElementsArePassedOverAtOnce) {
  RecordingHook hook(true);
  Member member(options_, &hook);
  std::vector<float> buffer(16);
  GradBucket bucket =
      *GradBucket::Make(0, {DType::kFloat32, buffer.data(), 16}, {options_.manifest[0]});
  Effects effects;
  ASSERT_TRUE(member.StartBucket(1, bucket, effects).ok());
  effects.clear();
  member.Receive({wire::Grant{{.bucket = 0, .round = 1}}}, effects);
  ASSERT_THAT(effects, SizeIs(1));
  EXPECT_EQ(std::get<SendChunkEffect>(effects[0]).header.id.round, 1U);
}

TEST_F(MemberTest, ABucketWithoutElementsNeedsNoGrant) {
  ASSERT_TRUE(Start({2}).ok());
  EXPECT_THAT(Drain<BucketDoneEffect>(), SizeIs(1));
  Grant(2);
  Receive(wire::StepDone{.step = 0});
  EXPECT_EQ(hook_.commits, 1);
  EXPECT_FALSE(member_->failed());
}

TEST_F(MemberTest, AnotherAttemptIsSentFromTheStart) {
  ASSERT_TRUE(Start({1}).ok());
  Grant(1);
  Drain<SendChunkEffect>();
  Receive(wire::Restart{.step = 0, .attempt = 1, .open = {{.attempt = 1, .bucket = 1}}});
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(2));
  EXPECT_EQ(chunks[0].header.chunk, 0U);
  EXPECT_EQ(chunks[0].header.id.attempt, 1U);
}

// In-place results: what was decoded must never be encoded again.
TEST_F(MemberTest, AfterAResumeNothingIsSentWhoseResultIsHere) {
  ASSERT_TRUE(Start({1}).ok());
  Grant(1);
  Result(1, 0);
  Drain<SendEffect>();
  Resumed();
  EXPECT_THAT(DrainSent<wire::Announce>(), SizeIs(1));
  Result(1, 0);  // the daemon does not know that it is here
  EXPECT_EQ(DrainSent<wire::Ack>().at(0).received, 1U);
  Result(1, 1);
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
  Receive(wire::Restart{.step = 0, .attempt = 1, .open = {{.bucket = 1}}});
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_EQ(chunks[0].header.chunk, 2U);
  EXPECT_EQ(chunks[0].header.received, 2U);
  EXPECT_EQ(hook_.decoded, (std::vector<std::size_t>{0, 16}));
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
  Drain<SendEffect>();
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

TEST_F(MemberTest, SendsABroadcastInTheWindow) {
  Effects effects;
  ASSERT_EQ(*member_->Enter(wire::CollectiveKind::kBroadcast, 1, 160, effects), 0U);
  EXPECT_FALSE(member_->Enter(wire::CollectiveKind::kBarrier, 0, 0, effects).ok());
  Receive(wire::Begin{0});
  EXPECT_THAT(Drain<SendCollectiveEffect>(), SizeIs(2));
  Receive(wire::CollectiveAck{0, 1});
  const auto last = Drain<SendCollectiveEffect>();
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_EQ(last[0].offset, 128U);
  EXPECT_EQ(last[0].bytes, 32U);
  Receive(wire::CollectiveAck{0, 3});
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), SizeIs(1));
}

TEST_F(MemberTest, AcknowledgesAnEndedBroadcastAgain) {
  Effects effects;
  ASSERT_TRUE(member_->Enter(wire::CollectiveKind::kBroadcast, 0, 10, effects).ok());
  Receive(wire::Begin{0});
  Receive(wire::CollectiveChunk{0, 0}, Bytes(10));
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), SizeIs(1));
  Resumed();
  Receive(wire::CollectiveChunk{0, 0}, Bytes(10));
  EXPECT_EQ(DrainSent<wire::CollectiveAck>().at(0), (wire::CollectiveAck{0, 1}));
  ASSERT_TRUE(member_->Enter(wire::CollectiveKind::kBarrier, 0, 0, effects).ok());
  Receive(wire::CollectiveChunk{0, 0}, Bytes(10));
  EXPECT_EQ(DrainSent<wire::CollectiveAck>().at(0), (wire::CollectiveAck{0, 1}));
}

TEST_F(MemberTest, ProgressNamesTheOpenBucket) {
  EXPECT_EQ(member_->Progress(), "step 0: no bucket is open here");
  ASSERT_TRUE(Start({1}).ok());
  EXPECT_EQ(member_->Progress(), "step 0: bucket of b has 0 of 3 results, not granted");
  Grant(1);
  Result(1, 0);
  EXPECT_EQ(member_->Progress(), "step 0: bucket of b has 1 of 3 results, granted");
}

// ---- Eager buckets: parameter 0 is one chunk.

}  // namespace
}  // namespace gradwire::client

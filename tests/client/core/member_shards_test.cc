// A member's core of one shard of several: what it tells its daemon, and again on a new stream.
#include "gmock/gmock.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two rounds, so that the second one opens without a grant; both of the whole bucket.
class TwoRoundHook final : public HookBase {
 public:
  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t step) const override {
    auto once = inner_.Plan(parameters, step);
    if (once.ok()) once->push_back(once->front());
    return once;
  }
  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) override {
    return std::make_unique<RecordingRun>(inner_, *Plan(bucket.parameters(), step),
                                          bucket.buffer());
  }

 private:
  RecordingHook inner_;
};

class MemberShardsTest : public MemberTest {
 protected:
  MemberShardsTest() { Shard(1); }

  void Shard(std::uint32_t number) {
    options_.shard = number;
    options_.shards = std::make_shared<const ShardMap>(
        *ShardMap::Make(*HookSpec::Parse("no,comm_wrapper=bf16"), options_.manifest, 2));
    member_.emplace(options_, &two_rounds_);
  }
  void Prepared(std::int64_t step) { Receive(wire::Prepared{.step = step, .digest = 4}); }
  void Conclude(Verdict verdict = Verdict::kApply) {
    Effects effects;
    member_->ConcludeAs({.step = member_->step(), .verdict = verdict}, effects);
    Take(std::move(effects));
  }
  void Ready() {
    Effects effects;
    member_->SayReady(Verdict::kSkip, 9, effects);
    Take(std::move(effects));
  }
  void Resumed() {
    Effects effects;
    member_->Resumed(effects);
    Take(std::move(effects));
  }

  TwoRoundHook two_rounds_;
};

TEST_F(MemberShardsTest, ReportsWhatTheShardIsPreparedFor) {
  Prepared(0);
  const auto prepared = Drain<PreparedEffect>();
  ASSERT_THAT(prepared, SizeIs(1));
  EXPECT_EQ(prepared[0].digest, 4U);
  ASSERT_TRUE(Start({0}).ok());
  Prepared(0);
  EXPECT_THAT(Message(), HasSubstr("that it is prepared before its last result"));
}

TEST_F(MemberShardsTest, ConcludesWhenItIsToldAndTellsTheShard) {
  Conclude(Verdict::kSkip);
  EXPECT_EQ(member_->step(), 1);
  const auto said = DrainSent<wire::Concluded>();
  EXPECT_THAT(said,
              ElementsAre(wire::Concluded{.step = 0, .generation = 7, .verdict = Verdict::kSkip}));
  Prepared(0);
  EXPECT_THAT(Drain<PreparedEffect>(), IsEmpty()) << "a resume repeats it";
  Resumed();
  EXPECT_EQ(DrainSent<wire::Concluded>(), said);
}

TEST_F(MemberShardsTest, OnlyTheLeadEndsAStep) {
  Receive(wire::StepDone{.step = 0, .verdict = Verdict::kApply});
  EXPECT_THAT(Message(), HasSubstr("does not lead the session"));
}

TEST_F(MemberShardsTest, SaysReadyOnceAndAgainOnANewStream) {
  Shard(0);
  Ready();
  Ready();
  const auto said = DrainSent<wire::Ready>();
  EXPECT_THAT(said, ElementsAre(wire::Ready{
                        .step = 0, .generation = 7, .verdict = Verdict::kSkip, .digest = 9}));
  Resumed();
  EXPECT_EQ(DrainSent<wire::Ready>(), said);
  Receive(wire::StepDone{.step = 0, .verdict = Verdict::kApply});
  EXPECT_THAT(Message(), HasSubstr("another verdict than the shards' together"));

  Shard(0);
  Ready();
  Receive(wire::StepDone{.step = 0, .verdict = Verdict::kSkip});
  EXPECT_EQ(member_->step(), 1);
  effects_.clear();
  Resumed();
  EXPECT_THAT(DrainSent<wire::Ready>(), IsEmpty()) << "it was of the step before";
}

// Another member has concluded this step, and somebody resumes in the next one.
TEST_F(MemberShardsTest, TheNextStepsAttemptMayComeEarly) {
  Receive(wire::Restart{.step = 1, .attempt = 2});
  ASSERT_FALSE(member_->failed()) << Message();
  Conclude();
  ASSERT_TRUE(Start({0}).ok());
  Receive(wire::Grant{{.step = 1, .attempt = 2, .bucket = 0}});
  const wire::RoundId first{.step = 1, .attempt = 2, .bucket = 0};
  effects_.clear();
  Receive(wire::Result{.id = first, .chunk = 0}, Bytes(64));
  const auto second = Drain<SendChunkEffect>();
  ASSERT_THAT(second, SizeIs(1)) << Message();
  EXPECT_EQ(second[0].header.id.round, 1U);
  EXPECT_EQ(second[0].header.id.attempt, 2U);
}

TEST_F(MemberShardsTest, TheLeadsRestartsAreOfTheOpenStep) {
  Shard(0);
  Receive(wire::Restart{.step = 1, .attempt = 2});
  EXPECT_THAT(Message(), HasSubstr("a restart of step 1"));
}

TEST_F(MemberShardsTest, AFailureElsewhereIsPassedOn) {
  Effects effects;
  member_->FailElsewhere(absl::AbortedError("rank 0 was lost"), 0, effects);
  Take(std::move(effects));
  const auto failed = Drain<FailedEffect>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].blamed_rank, 0);
  ASSERT_TRUE(failed[0].last_words.has_value());
  EXPECT_EQ(failed[0].last_words->message, "rank 0 was lost");
  EXPECT_EQ(failed[0].last_words->code, static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_EQ(failed[0].last_words->blamed_rank, 0);
}

TEST_F(MemberShardsTest, TheDaemonsOwnFailureIsNotSaidToItAgain) {
  Receive(wire::Failure{.code = 10, .message = "gone", .blamed_rank = 0});
  const auto failed = Drain<FailedEffect>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_FALSE(failed[0].last_words.has_value());
}

TEST_F(MemberShardsTest, ADroppedStepIsOverWithoutItsResultsAndIsToldToNobody) {
  ASSERT_TRUE(Start({0}).ok());
  Drain<SendFrameEffect>();
  Effects effects;
  member_->ConcludeAs({.step = 0, .verdict = Verdict::kSkip, .dropped = true}, effects);
  Take(std::move(effects));
  EXPECT_EQ(member_->step(), 1);
  const auto done = Drain<StepDoneEffect>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_TRUE(done[0].dropped);
  Resumed();
  EXPECT_THAT(DrainSent<wire::Concluded>(), IsEmpty());
}

TEST_F(MemberShardsTest, NoStepIsAppliedWithoutThisShardsResults) {
  ASSERT_TRUE(Start({0}).ok());
  Conclude(Verdict::kApply);
  EXPECT_THAT(Message(), HasSubstr("before the last result of another"));
}

TEST_F(MemberShardsTest, AsksItsShardToGatherUntilThatHasHeard) {
  Effects effects;
  member_->AskToGather(0, effects);
  member_->AskToGather(1, effects);
  Take(std::move(effects));
  const auto asked = DrainSent<wire::GatherAgain>();
  EXPECT_THAT(asked, ElementsAre(wire::GatherAgain{.generation = 7, .shard = 0}));
  Resumed();
  EXPECT_EQ(DrainSent<wire::GatherAgain>(), asked);
  member_->Rejoined(8);
  Resumed();
  EXPECT_THAT(DrainSent<wire::GatherAgain>(), IsEmpty()) << "this daemon has gathered";
}

// It may have all results of shard 0 and not those of another.
TEST_F(MemberShardsTest, ANewcomerThatIsNotReadyLetsTheOthersEndTheStep) {
  Shard(0);
  const wire::MembershipChange change{.newcomers = {options_.rank}, .root = 0, .collectives = 1};
  Receive(wire::Welcome{
      .step = 3,
      .recovery =
          wire::Recovery{.session_key = std::string(wire::kSessionKeyBytes, 'k'), .life = 2},
      .change = change});
  ASSERT_EQ(member_->step(), 3);
  Drain<StepDoneEffect>();
  Receive(wire::StepDone{.step = 3, .verdict = Verdict::kApply});
  EXPECT_EQ(member_->step(), 3) << Message();
  Receive(wire::StepDone{.step = 4, .verdict = Verdict::kSkip, .dropped = true, .change = change});
  EXPECT_EQ(member_->step(), 5) << Message();
}

TEST_F(MemberShardsTest, WhetherADaemonHasEndedTheSessionIsSaid) {
  Receive(wire::Failure{.code = 10, .message = "rank 1 was lost", .blamed_rank = 1});
  auto failed = Drain<FailedEffect>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_TRUE(failed[0].is_told);
  Shard(1);
  Effects effects;
  member_->Fail(absl::InternalError("the hook failed"), effects);
  Take(std::move(effects));
  failed = Drain<FailedEffect>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_FALSE(failed[0].is_told);
}

}  // namespace
}  // namespace gradwire::client

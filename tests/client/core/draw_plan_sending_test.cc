// Rank 0's draw plan on its way: pieces that fit a frame, and what a new stream brings again.
#include "client/core/draw_plan_sending.h"

#include <numeric>

#include "base/limits.h"
#include "client/core/member.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const DrawBuckets kPlan = {{1}, {0, 2}};

class DrawPlanTest : public EffectsTest {
 protected:
  static MemberOptions Options(int rank, bool understood) {
    MemberOptions options = SmallOptions();
    options.rank = rank;
    options.draw_plan = understood;
    return options;
  }
  void Make(int rank = 0, bool understood = true) {
    member_.emplace(Options(rank, understood), &hook_);
  }
  absl::Status Set(const DrawBuckets& buckets) {
    Effects effects;
    absl::Status status = member_->SetDrawPlan(buckets, effects);
    Take(std::move(effects));
    return status;
  }
  std::vector<wire::DrawPlan> SentBy(void (Member::*call)(Effects&)) {
    Effects effects;
    ((*member_).*call)(effects);
    Take(std::move(effects));
    return DrainSent<wire::DrawPlan>();
  }
  void Receive(const wire::Frame& frame) {
    Effects effects;
    member_->Receive(frame, effects);
    Take(std::move(effects));
  }
  void RunStep() {
    Effects effects;
    ASSERT_TRUE(member_->EndStep(effects).ok());
    Receive({.header = wire::StepDone{.step = member_->step()}});
  }

  std::optional<Member> member_;
};

TEST_F(DrawPlanTest, IsSentAtOnceAndAgainUntilTheDaemonMustHaveIt) {
  Make();
  ASSERT_TRUE(Set(kPlan).ok());
  const auto sent = DrainSent<wire::DrawPlan>();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].buckets, kPlan);
  EXPECT_EQ(sent[0].generation, 7U);
  EXPECT_TRUE(sent[0].last);
  EXPECT_EQ(SentBy(&Member::Resumed), sent);
  RunStep();  // its end may have been announced before
  EXPECT_EQ(SentBy(&Member::Resumed), sent);
  RunStep();
  EXPECT_THAT(SentBy(&Member::Resumed), IsEmpty());
}

TEST_F(DrawPlanTest, GoesBeforeTheBucketsOfANewStream) {
  Make();
  ASSERT_TRUE(Set(kPlan).ok());
  Effects effects;
  ASSERT_TRUE(member_->StartBucket(1, Bucket({0}), effects).ok());
  effects.clear();
  member_->Resumed(effects);
  ASSERT_GE(effects.size(), 2U);
  const auto& first = std::get<SendFrameEffect>(effects[0]).header;
  EXPECT_TRUE(std::holds_alternative<wire::DrawPlan>(first));
}

TEST_F(DrawPlanTest, AnImportedStateTakesItsPlace) {
  Make();
  Receive({.header = wire::StateReset{.iteration = 3}});
  ASSERT_TRUE(Set(kPlan).ok());
  DrainSent<wire::DrawPlan>();
  Receive({.header = wire::StateReset{.iteration = 3}});  // repeated after a resume
  EXPECT_THAT(SentBy(&Member::Resumed), SizeIs(1));
  Receive({.header = wire::StateReset{.iteration = 4}});
  EXPECT_THAT(SentBy(&Member::Resumed), IsEmpty());
}

TEST_F(DrawPlanTest, OthersAndWrongOnesAreRefusedAndTheSessionGoesOn) {
  Make(1);
  absl::Status status = Set(kPlan);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("of rank 1; allowed: of rank 0"));
  Make();
  status = Set({{0, 0}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(DrainSent<wire::DrawPlan>(), IsEmpty());
  EXPECT_FALSE(member_->failed());
}

TEST_F(DrawPlanTest, AnOlderDaemonIsSpared) {
  Make(0, false);
  EXPECT_TRUE(Set(kPlan).ok());
  EXPECT_THAT(DrainSent<wire::DrawPlan>(), IsEmpty());
}

TEST(DrawPlanSending, APlanOfAnySizeIsCutIntoPieces) {
  DrawBuckets plan(3);
  for (std::size_t b = 0; b < plan.size(); ++b) {
    plan[b].resize(kMaxDrawPlanPiece - 1 + b);
    std::iota(plan[b].begin(), plan[b].end(), static_cast<std::uint32_t>(b * 100'000));
  }
  DrawPlanSending sending;
  Effects effects;
  sending.Set(plan, 7, 0, effects);
  ASSERT_THAT(effects, SizeIs(3));
  DrawBuckets joined;
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto& piece = std::get<wire::DrawPlan>(std::get<SendFrameEffect>(effects[i]).header);
    EXPECT_EQ(piece.piece, i);
    EXPECT_EQ(piece.last, i == 2);
    std::size_t parameters = 0;
    for (std::size_t b = 0; b < piece.buckets.size(); ++b) {
      parameters += piece.buckets[b].size();
      if (b > 0 || !piece.continued) joined.emplace_back();
      joined.back().insert(joined.back().end(), piece.buckets[b].begin(), piece.buckets[b].end());
    }
    EXPECT_LE(parameters, kMaxDrawPlanPiece);
  }
  EXPECT_EQ(joined, plan);
}

// The first bucket of the plan that a new stream brings again; empty: none.
std::vector<std::uint32_t> Repeated(const DrawPlanSending& sending) {
  Effects effects;
  sending.Send(effects);
  if (effects.empty()) return {};
  return std::get<wire::DrawPlan>(std::get<SendFrameEffect>(effects[0]).header).buckets.at(0);
}

TEST(DrawPlanSending, ALaterPlanThanTheDrawsIsNotBroughtAgain) {
  DrawPlanSending sending;
  Effects effects;
  sending.Set({{1}}, 7, 0, effects);
  sending.Set({{2}}, 7, 0, effects);
  EXPECT_EQ(Repeated(sending), std::vector<std::uint32_t>{2});
  sending.Fix();
  sending.Set({{3}}, 7, 1, effects);
  EXPECT_THAT(effects, SizeIs(3)) << "the daemon says that it has no effect";
  EXPECT_EQ(Repeated(sending), std::vector<std::uint32_t>{2});
  sending.Reset();
  sending.Set({{4}}, 7, 1, effects);
  EXPECT_EQ(Repeated(sending), std::vector<std::uint32_t>{4});
}

// Until the step after its own is applied: only then somebody else has it.
TEST(DrawPlanSending, SkippedStepsBringThePlanToNobody) {
  DrawPlanSending sending;
  Effects effects;
  sending.Set({{1}}, 7, 0, effects);
  for (const std::int64_t next : {1, 2, 3}) {
    sending.StepsSkipped(1);
    sending.StepDone(next);
    EXPECT_THAT(Repeated(sending), SizeIs(1)) << next;
  }
  sending.StepDone(4);
  EXPECT_THAT(Repeated(sending), SizeIs(1));
  sending.StepDone(5);
  EXPECT_THAT(Repeated(sending), IsEmpty());
}

// A newcomer has not been in the steps between.
TEST(DrawPlanSending, StepsThatAreSkippedAtOnceDoNeither) {
  DrawPlanSending sending;
  Effects effects;
  sending.Set({{1}}, 7, 0, effects);
  sending.StepsSkipped(3);
  sending.StepsSkipped(1);
  for (const std::int64_t next : {4, 5}) {
    sending.StepDone(next);
    EXPECT_THAT(Repeated(sending), SizeIs(1)) << next;
  }
  sending.StepDone(6);
  EXPECT_THAT(Repeated(sending), IsEmpty());
}

}  // namespace
}  // namespace gradwire::client

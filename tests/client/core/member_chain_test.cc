// What a member knows of the chain of its session's steps, and whom it believes.
#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/step_chain.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::HasSubstr;

class MemberChain : public MemberTest {
 protected:
  // A step without buckets.
  void Step(std::int64_t step, std::uint64_t digest) {
    Effects effects;
    ASSERT_TRUE(member_->EndStep(effects).ok());
    Done({.step = step, .digest = digest});
  }
  void Done(const wire::StepDone& done) {
    chain_.Advance(done);
    Receive(done);
  }
  void Welcome(std::int64_t step, std::uint64_t chain,
               const std::optional<wire::MembershipChange>& change = std::nullopt) {
    Receive(wire::Welcome{.step = step,
                          .recovery = wire::Recovery{.session_key = "k", .chain = chain},
                          .change = change});
  }
  std::uint64_t Reported() const { return member_->Report().chain; }

  wire::StepChain chain_;
};

TEST_F(MemberChain, ReportsThatOfAllStepsBeforeTheOpenOne) {
  Welcome(0, 0);
  EXPECT_EQ(Reported(), 0U);
  Step(0, 5);
  Step(1, 6);
  EXPECT_NE(Reported(), 0U);
  EXPECT_EQ(Reported(), chain_.Before(2));
  Done({.step = 1, .digest = 7});
  EXPECT_EQ(Reported(), chain_.Before(2)) << "a repeat";
  Done({.step = 2, .verdict = Verdict::kSkip, .dropped = true});
  EXPECT_EQ(Reported(), chain_.Before(3));
}

TEST_F(MemberChain, TakesADaemonThatHasTheSame) {
  Welcome(0, 0);
  Step(0, 5);
  member_->Rejoined(8);
  Welcome(1, chain_.Before(1));
  EXPECT_FALSE(member_->failed()) << Message();
  EXPECT_EQ(Reported(), chain_.Before(1));
}

TEST_F(MemberChain, RefusesADaemonThatHasSeenOtherResults) {
  Welcome(0, 0);
  Step(0, 5);
  member_->Rejoined(8);
  Welcome(1, chain_.Before(1) + 1);
  EXPECT_THAT(Message(),
              HasSubstr("the coordinator sent other results before step 1 than this member had"));
}

// It has heard of the step's end since it sent its Hello. And of what does not know it nobody
// learns anything.
TEST_F(MemberChain, ComparesThatOfItsOwnStepOnly) {
  Welcome(0, 0);
  Step(0, 5);
  Welcome(0, 0);
  Welcome(1, 0);
  EXPECT_FALSE(member_->failed()) << Message();
  EXPECT_EQ(Reported(), chain_.Before(1));
}

TEST_F(MemberChain, ANewcomerLearnsItWithItsWelcome) {
  Welcome(4, 77, wire::MembershipChange{.newcomers = {1}});
  EXPECT_EQ(Reported(), 77U);
  chain_ = wire::StepChain(4, 77);
  Effects effects;
  member_->SayReady(Verdict::kApply, 5, effects);
  Step(4, 5);
  EXPECT_EQ(Reported(), chain_.Before(5));
}

// It is told of those with the change only, and learns the chain again with the next Welcome.
TEST_F(MemberChain, ANewcomerThatWasNotInSomeStepsDoesNotKnowItUntilItIsTold) {
  Welcome(4, 77, wire::MembershipChange{.newcomers = {1}});
  member_->Rejoined(8);
  Receive(wire::StepDone{.step = 5,
                         .verdict = Verdict::kSkip,
                         .dropped = true,
                         .change = wire::MembershipChange{.newcomers = {1}}});
  ASSERT_FALSE(member_->failed()) << Message();
  EXPECT_EQ(member_->Report().step, 6);
  EXPECT_EQ(Reported(), 0U);
  Welcome(6, 99);
  EXPECT_EQ(Reported(), 99U);
}

// The lost daemon may have told others how it ended, and the next one says only that it gives up.
TEST_F(MemberChain, WhoWasReadyIsToldThatTheOutcomeIsUnknown) {
  Welcome(0, 0);
  Step(0, 5);
  Effects effects;
  member_->SayReady(Verdict::kApply, 5, effects);
  member_->Rejoined(8);
  Receive(wire::Failure{.code = 4, .message = "waited 1m for rank 2 [GW205]", .blamed_rank = -1});
  EXPECT_EQ(Message(), "waited 1m for rank 2 (outcome of step 1 unknown) [GW205]");
}

TEST_F(MemberChain, WhoHasHeardTheEndIsNot) {
  Welcome(0, 0);
  Effects effects;
  member_->SayReady(Verdict::kApply, 5, effects);
  member_->Rejoined(8);
  Step(0, 5);
  Receive(wire::Failure{.code = 4, .message = "waited 1m for rank 2 [GW205]", .blamed_rank = -1});
  EXPECT_EQ(Message(), "waited 1m for rank 2 [GW205]");
}

// What it lacks results of, others apply.
TEST_F(MemberChain, ANewcomerFollowsStepsThatItDoesNotTake) {
  Welcome(4, 77, wire::MembershipChange{.newcomers = {1}});
  chain_ = wire::StepChain(4, 77);
  ASSERT_TRUE(Start({0}).ok());
  member_->Rejoined(8);
  Done({.step = 4, .digest = 5});
  EXPECT_EQ(member_->Report().step, 4);
  EXPECT_EQ(Reported(), 0U) << "of another step than the open one";
  Done({.step = 5,
        .verdict = Verdict::kSkip,
        .dropped = true,
        .change = wire::MembershipChange{.newcomers = {1}}});
  ASSERT_FALSE(member_->failed()) << Message();
  EXPECT_EQ(Reported(), chain_.Before(6));
  Welcome(6, chain_.Before(6));
  EXPECT_FALSE(member_->failed()) << Message();
}

}  // namespace
}  // namespace gradwire::client

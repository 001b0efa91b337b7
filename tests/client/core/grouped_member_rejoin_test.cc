// A member of a node group whose session outlives its daemon.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/client/core/grouped_member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class GroupedMemberRejoinTest : public GroupedMemberTest {
 protected:
  static wire::Welcome WelcomeAt(std::int64_t step, std::vector<int> ranks = {0, 1}) {
    const auto size = static_cast<std::uint32_t>(ranks.size());
    return {
        .step = step,
        .group =
            wire::NodeGroup{.ranks = std::move(ranks), .shares = 2, .groups = 3 - size, .group = 0},
        .recovery = wire::Recovery{.session_key = "key"}};
  }
  void Rejoin() {
    Effects effects;
    member_->Rejoined(8, effects);
    Take(std::move(effects));
  }
  // Of a bucket of w and b. Each comes after those before it.
  enum class Phase { kBegun, kOrdered, kExchanged, kReduced, kGathers };
  void Advance(Phase phase) {
    EXPECT_TRUE(Start({0, 1}).ok());
    if (phase >= Phase::kOrdered) Order(0, 0, false);
    if (phase >= Phase::kExchanged) Exchanged(1, {{0}});
    if (phase >= Phase::kReduced) Result(0);
    if (phase >= Phase::kGathers) Order(1, 0, true);
  }
  void SayReady() {
    for (const PreparedEffect& prepared : Drain<PreparedEffect>()) {
      Effects effects;
      member_->SayReady(prepared.verdict, prepared.digest, effects);
      Take(std::move(effects));
    }
  }
  static wire::StepDone Dropped(std::int64_t step) {
    return {.step = step, .verdict = Verdict::kSkip, .dropped = true};
  }
};

TEST_F(GroupedMemberRejoinTest, IsReadyWhenTheGroupHasGathered) {
  Receive(WelcomeAt(0));
  Advance(Phase::kGathers);
  Receive(wire::Prepared{.step = 0, .verdict = Verdict::kApply, .digest = 9});
  EXPECT_THAT(Drain<PreparedEffect>(), IsEmpty()) << "who would order it after the daemon's loss?";
  Gathered(1);
  ASSERT_THAT(effects_, SizeIs(2)) << "the bucket is done";
  SayReady();
  EXPECT_THAT(DrainSent<wire::Ready>(), ElementsAre(wire::Ready{0, 7, Verdict::kApply, 9}));
  EXPECT_TRUE(member_->Report().ready.has_value());
  Receive(wire::StepDone{});
  EXPECT_THAT(Drain<StepDoneEffect>(), SizeIs(1));
}

// Whatever the group has done of it, nobody finishes it.
TEST_F(GroupedMemberRejoinTest, AStepThatWasBegunIsDroppedInEachPhase) {
  for (const Phase phase :
       {Phase::kBegun, Phase::kOrdered, Phase::kExchanged, Phase::kReduced, Phase::kGathers}) {
    SCOPED_TRACE(static_cast<int>(phase));
    member_.emplace(options_, &hook_, /*whole_buckets=*/false);
    effects_.clear();
    ticket_ = 0;
    Receive(WelcomeAt(0));
    Advance(phase);
    EXPECT_TRUE(member_->Report().has_contributed);
    effects_.clear();
    Rejoin();
    EXPECT_THAT(Drain<AbortGroupEffect>(), SizeIs(1));
    EXPECT_TRUE(member_->Report().has_contributed) << "the next daemon may be lost, too";
    Receive(Dropped(0));
    ASSERT_EQ(effects_.size(), 2U);
    EXPECT_EQ(std::get<BucketDoneEffect>(effects_[0]).status, absl::OkStatus());
    EXPECT_EQ(std::get<StepDoneEffect>(effects_[1]).verdict, Verdict::kSkip);
    effects_.clear();
    EXPECT_FALSE(member_->Report().has_contributed);
    Receive(WelcomeAt(1));
    EXPECT_THAT(Drain<GroupEffect>(), SizeIs(1));
    // The next one goes its way, with orders and a communicator of its own.
    Receive(wire::GroupId{8, "anew"});
    EXPECT_EQ(Drain<ConnectEffect>().front().id, "anew");
    EXPECT_TRUE(Start({0}).ok());
    EXPECT_THAT(DrainSent<wire::GroupBucket>(), ElementsAre(wire::GroupBucket{1, 8, {0}}));
    Receive(wire::GroupOrder{.step = 1, .number = 0, .bucket = 0});
    EXPECT_EQ(Drain<ExchangeEffect>().front().ticket, 2);
    EXPECT_EQ(Message(), "");
  }
}

TEST_F(GroupedMemberRejoinTest, AStepThatAllAreReadyForEnds) {
  Receive(WelcomeAt(0));
  Advance(Phase::kGathers);
  Gathered(1);
  Receive(wire::Prepared{.step = 0, .verdict = Verdict::kApply, .digest = 9});
  SayReady();
  Rejoin();
  effects_.clear();
  Receive(wire::StepDone{});
  EXPECT_EQ(Drain<StepDoneEffect>().front().verdict, Verdict::kApply);
  EXPECT_EQ(hook_.commits, 1);
}

// Its user is still computing.
TEST_F(GroupedMemberRejoinTest, AStepIsDroppedBetweenTwoBuckets) {
  Receive(WelcomeAt(0));
  Advance(Phase::kGathers);
  Gathered(1);
  Rejoin();
  effects_.clear();
  Receive(Dropped(0));
  EXPECT_THAT(effects_, SizeIs(1)) << "the bucket was done before";
  EXPECT_EQ(Drain<StepDoneEffect>().front().step, 0);
  Receive(WelcomeAt(1));
  End();
  EXPECT_THAT(DrainSent<wire::EndStep>(), ElementsAre(wire::EndStep{1, 8}));
}

TEST_F(GroupedMemberRejoinTest, ABucketThatIsBegunBeforeTheWelcomeWaitsForIt) {
  Receive(WelcomeAt(0));
  EXPECT_FALSE(member_->Report().has_contributed);
  Rejoin();
  effects_.clear();
  EXPECT_TRUE(Start({0, 1}).ok());
  Effects resumed;
  member_->Resumed(resumed);
  EXPECT_THAT(resumed, IsEmpty());
  EXPECT_THAT(DrainSent<wire::GroupBucket>(), IsEmpty());
  EXPECT_FALSE(member_->Report().has_contributed);
  Receive(WelcomeAt(0));
  EXPECT_THAT(DrainSent<wire::GroupBucket>(), ElementsAre(wire::GroupBucket{0, 8, {0, 1}}));
  EXPECT_TRUE(member_->Report().has_contributed);
}

TEST_F(GroupedMemberRejoinTest, TheFirstOfItsGroupNamesACommunicatorForEachDaemon) {
  Receive(WelcomeAt(0, {1, 2}));
  EXPECT_TRUE(Drain<GroupEffect>().front().names);
  Rejoin();
  Receive(WelcomeAt(0, {1, 2}));
  EXPECT_TRUE(Drain<GroupEffect>().front().names);
  Effects effects;
  member_->NameGroup("anew", effects);
  Take(std::move(effects));
  EXPECT_THAT(DrainSent<wire::GroupId>(), ElementsAre(wire::GroupId{8, "anew"}));
  Receive(WelcomeAt(0, {1, 2}));
  EXPECT_THAT(Drain<GroupEffect>(), IsEmpty()) << "of a resume";
}

TEST_F(GroupedMemberRejoinTest, AnotherGroupThanBeforeEndsTheSession) {
  Receive(WelcomeAt(0));
  Rejoin();
  Receive(WelcomeAt(0, {1, 2}));
  EXPECT_THAT(Message(), HasSubstr("the session goes on with this member in the node group of "
                                   "ranks 1, 2, one of 1 with 2 shares; allowed: this member in "
                                   "the node group of ranks 0, 1"));
}

// Rank 0 is lost, and comes again: its share is this member's meanwhile.
TEST_F(GroupedMemberRejoinTest, WhereTheSessionShrinksSharesChangeHands) {
  std::int64_t step = 0;
  const auto go_on_with = [&](const std::vector<int>& ranks) {
    if (step > 0) {
      Rejoin();
      Receive(Dropped(step - 1));
    }
    wire::Welcome welcome = WelcomeAt(step, ranks);
    welcome.group->groups = 1;
    welcome.recovery->roster =
        wire::Roster{.number = static_cast<std::uint64_t>(step) + 1, .ranks = ranks};
    Receive(welcome);
    EXPECT_EQ(Message(), "");
    EXPECT_EQ(member_->members(), static_cast<int>(ranks.size()));
    ++step;
  };
  go_on_with({0, 1});
  EXPECT_EQ(member_->Report().shares, 2U);
  EXPECT_EQ(member_->OwnerOf(0), 0U);
  EXPECT_EQ(member_->OwnerOf(1), 1U);
  go_on_with({1});
  for (const std::uint32_t share : {0U, 1U}) EXPECT_EQ(member_->OwnerOf(share), 0U);
  go_on_with({0, 1});
  EXPECT_EQ(member_->OwnerOf(0), 0U);
  // Rank 0 is gone again, before it has had a step: there is nothing newer than what is here.
  go_on_with({1});
  go_on_with({0, 1});
  EXPECT_THAT(hook_.forgotten, IsEmpty());
  Receive(wire::StepDone{.step = step - 1});
  EXPECT_EQ(Message(), "");
  EXPECT_THAT(hook_.forgotten, ElementsAre("b")) << "the first share";
}

TEST_F(GroupedMemberRejoinTest, HowManySharesThereAreNeverChanges) {
  wire::Welcome welcome = WelcomeAt(0);
  welcome.recovery->roster = wire::Roster{.number = 1, .ranks = {0, 1}};
  Receive(welcome);
  Rejoin();
  welcome.group->shares = 3;
  Receive(welcome);
  EXPECT_THAT(Message(), HasSubstr("one of 1 with 3 shares; allowed: this member in the node group "
                                   "of ranks 0, 1, one of 1 with 2 shares"));
}

TEST_F(GroupedMemberRejoinTest, AResumeDoesNotChangeTheGroup) {
  wire::Welcome welcome = WelcomeAt(0);
  welcome.recovery->roster = wire::Roster{.number = 1, .ranks = {0, 1}};
  Receive(welcome);
  Receive(WelcomeAt(0, {1}));
  EXPECT_THAT(Message(), HasSubstr("allowed: this member in the node group of ranks 0, 1"));
}

TEST_F(GroupedMemberRejoinTest, ASessionWithoutGroupsStaysWithoutThem) {
  wire::Welcome without = WelcomeAt(0);
  without.group.reset();
  Receive(without);
  Rejoin();
  Receive(WelcomeAt(0));
  EXPECT_THAT(Message(), HasSubstr("allowed: no node groups, as before"));
}

// Weights are those of the first Welcome.
TEST_F(GroupedMemberRejoinTest, OtherLeavesThanBeforeEndTheSession) {
  wire::Welcome welcome = WelcomeAt(0);
  welcome.group = wire::NodeGroup{.ranks = {1}, .shares = 1, .groups = 2, .group = 1};
  Receive(welcome);
  Rejoin();
  Receive(welcome);
  EXPECT_EQ(Message(), "");
  Rejoin();
  welcome.group->groups = 3;
  Receive(welcome);
  EXPECT_THAT(Message(),
              HasSubstr("goes on with 3 leaf daemons and trainers; allowed: 2, as before"));
}

// The next daemon waits for all ranks, and those that were left out have come.
TEST_F(GroupedMemberRejoinTest, AllLeavesMayComeBackToASessionThatHasShrunk) {
  wire::Welcome welcome = WelcomeAt(0);
  welcome.recovery->roster = wire::Roster{.number = 2, .ranks = {0, 1}};
  welcome.group.reset();
  Receive(welcome);
  Rejoin();
  welcome.recovery->roster.reset();
  welcome.group = wire::NodeGroup{.ranks = {1}, .shares = 1, .groups = 3, .group = 1};
  Receive(welcome);
  EXPECT_EQ(Message(), "");
}

// As leaves are lost, and come again.
TEST_F(GroupedMemberRejoinTest, InASessionThatShrinksLeavesMayBeOthers) {
  wire::Welcome welcome = WelcomeAt(0);
  welcome.recovery->roster = wire::Roster{.number = 1, .ranks = {0, 1, 2, 3}};
  welcome.group = wire::NodeGroup{.ranks = {1}, .shares = 1, .groups = 3, .group = 1};
  Receive(welcome);
  EXPECT_EQ(member_->leaf_groups(), 3U);
  EXPECT_EQ(member_->members(), 4);
  EXPECT_TRUE(member_->Report().has_leaves);
  Rejoin();
  welcome.recovery->roster = wire::Roster{.number = 2, .ranks = {0, 1}};
  welcome.group.reset();
  Receive(welcome);
  EXPECT_EQ(Message(), "");
  EXPECT_EQ(member_->leaf_groups(), 0U);
  EXPECT_EQ(member_->members(), 2);
  EXPECT_FALSE(member_->Report().has_leaves);
}

// Nobody else is in its exchange.
TEST_F(GroupedMemberRejoinTest, AloneItGoesOnAndForgetsWhatIsDropped) {
  Receive(WelcomeAt(0, {1}));
  EXPECT_TRUE(Start({0}).ok());
  EXPECT_THAT(Drain<ExchangeEffect>(), SizeIs(1));
  Rejoin();
  EXPECT_THAT(Drain<AbortGroupEffect>(), IsEmpty());
  Receive(Dropped(0));
  EXPECT_THAT(Drain<AbortGroupEffect>(), SizeIs(1)) << "its exchange is open";
  EXPECT_TRUE(Start({0}).ok());
  EXPECT_THAT(Drain<ExchangeEffect>(), IsEmpty()) << "the weight may be another one";
  Receive(WelcomeAt(1, {1}));
  EXPECT_THAT(Drain<ExchangeEffect>(), SizeIs(1));
}

// It has the results of its own share, and the others of its group may wait for its call.
TEST_F(GroupedMemberRejoinTest, ANewcomerLacksAStepThatIsNotGathered) {
  wire::Welcome welcome = WelcomeAt(0);
  welcome.change = wire::MembershipChange{.newcomers = {1}, .root = 0};
  Receive(welcome);
  Advance(Phase::kReduced);
  Rejoin();
  effects_.clear();
  Receive(wire::StepDone{});  // the others were READY
  EXPECT_THAT(Drain<StepDoneEffect>(), IsEmpty());
  wire::StepDone dropped = Dropped(1);
  dropped.change = welcome.change;
  Receive(dropped);
  EXPECT_EQ(Drain<StepDoneEffect>().front().step, 1);
  EXPECT_EQ(Message(), "");
}

}  // namespace
}  // namespace gradwire::client

// What a member knows and says of a session that goes on without lost members.
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MemberRoster : public MemberTest {
 protected:
  // The ranks that the user is told with the step's end.
  std::vector<int> ToldWith(const wire::StepDone& done) {
    Effects effects;
    member_->Receive({.header = done}, effects);
    for (const Effect& effect : effects) {
      if (const auto* over = std::get_if<StepDoneEffect>(&effect)) return over->ranks;
    }
    ADD_FAILURE() << "step " << done.step << " is not over";
    return {};
  }
  static wire::StepDone Dropped(std::int64_t step, std::vector<int> ranks = {}) {
    wire::StepDone done{.step = step, .verdict = Verdict::kSkip, .dropped = true};
    if (!ranks.empty()) done.change = wire::MembershipChange{.ranks = std::move(ranks)};
    return done;
  }
  void Apply(std::int64_t step) {
    Effects effects;
    ASSERT_TRUE(member_->EndStep(effects).ok());
    Receive(wire::StepDone{.step = step, .digest = 5});
  }
};

TEST_F(MemberRoster, ReportsHowManyStepsInARowWereSkipped) {
  Receive(wire::Welcome{.recovery = wire::Recovery{.session_key = "k"}});
  EXPECT_EQ(member_->Report().skipped, 0U);
  for (std::int64_t step = 0; step < 3; ++step) Receive(Dropped(step));
  EXPECT_EQ(member_->Report().skipped, 3U);
  EXPECT_EQ(member_->Report().Saw(0), Verdict::kSkip);
  Apply(3);
  EXPECT_EQ(member_->Report().skipped, 0U);
  for (std::int64_t step = 4; step < 9; ++step) Receive(Dropped(step));
  EXPECT_EQ(member_->Report().skipped, 5U);
  EXPECT_EQ(member_->Report().Saw(4), Verdict::kSkip);
  EXPECT_EQ(member_->Report().Saw(3), Verdict::kApply);
  EXPECT_FALSE(member_->Report().Saw(2).has_value());
}

TEST_F(MemberRoster, TellsWhoIsInTheNextOneWithADroppedStep) {
  Receive(wire::Welcome{.recovery =
                            wire::Recovery{.session_key = "k", .roster = wire::Roster{1, {0, 1}}}});
  EXPECT_THAT(ToldWith(Dropped(0)), IsEmpty());
  EXPECT_THAT(ToldWith(Dropped(1, {1})), ElementsAre(1));
}

// Its daemon is a leaf, which alone is in the root's roster, and outlives nothing.
TEST_F(MemberRoster, BehindALeafOnlyAChangeSaysWhoIsThere) {
  Receive(wire::Welcome{});
  EXPECT_THAT(ToldWith(Dropped(0)), IsEmpty());
  EXPECT_THAT(ToldWith(Dropped(1, {1})), ElementsAre(1));
  EXPECT_THAT(ToldWith(Dropped(2)), IsEmpty()) << "as before";
  EXPECT_THAT(ToldWith(Dropped(3, {1})), IsEmpty()) << "the same";
  EXPECT_THAT(ToldWith(Dropped(4, {0, 1})), ElementsAre(0, 1));
}

TEST_F(MemberRoster, ANewcomerBehindALeafKnowsFromItsWelcome) {
  Receive(
      wire::Welcome{.step = 4, .change = wire::MembershipChange{.newcomers = {1}, .ranks = {1}}});
  EXPECT_THAT(ToldWith(Dropped(4, {1})), IsEmpty()) << "the same";
  EXPECT_THAT(ToldWith(Dropped(5, {0, 1})), ElementsAre(0, 1));
}

// Its first daemon waited for all, and the next one does not.
TEST_F(MemberRoster, AFirstOneOfAllRanksIsNoChange) {
  Receive(wire::Welcome{.recovery = wire::Recovery{.session_key = "k"}});
  member_->Rejoined(8);
  Receive(wire::Welcome{.recovery =
                            wire::Recovery{.session_key = "k", .roster = wire::Roster{1, {0, 1}}}});
  EXPECT_THAT(ToldWith(Dropped(0)), IsEmpty());
}

}  // namespace
}  // namespace gradwire::client

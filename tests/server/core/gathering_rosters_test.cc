// Gatherings of sessions that shrink: who goes on, with which step, and who is left behind.
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/gathering_reports.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Report In(Report report, std::uint64_t number, std::vector<int> ranks) {
  report.roster = {.number = number, .ranks = std::move(ranks)};
  report.concluded = {0, 1, 2, 3};
  report.keeps_gradients = true;
  return report;
}
Report In(Report report) { return In(std::move(report), 1, {0, 1, 2, 3}); }

// Of four; rank 1 is gone.
Gathering WithoutRank1(const Report& rank0, const Report& rank2, const Report& rank3) {
  Gathering gathering(kKey, 5, 4, /*shrinks=*/true);
  gathering.Take(0, rank0);
  gathering.SetGone(1);
  gathering.Take(2, rank2);
  gathering.Take(3, rank3);
  return gathering;
}

TEST(GatheringShrinks, AStepGoesOnWithTheMeanOfThoseWhoAreHere) {
  const Gathering gathering =
      WithoutRank1(In(Contributed(4, true)), In(Contributed(4, false)), In(At(4)));
  const auto outcome = gathering.Decide();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->step, 4);
  EXPECT_THAT(outcome->ended, IsEmpty());
  EXPECT_FALSE(outcome->change.has_value());
  EXPECT_EQ(outcome->roster, (wire::Roster{.number = 2, .ranks = {0, 2, 3}}));
  EXPECT_EQ(outcome->donor, 0);
  EXPECT_THAT(gathering.LeftBehind(), IsEmpty());
}

// It has applied the mean of four, or may have; or it cannot give its gradient again.
TEST(GatheringShrinks, AStepThatSomebodyIsStuckInIsDropped) {
  Report seen = In(Contributed(4, true));
  seen.has_seen_results = true;
  Report forgets = In(Contributed(4, false));
  forgets.keeps_gradients = false;
  Report waits = In(At(4));
  waits.in_collective = true;
  Report through = In(At(4));
  through.collectives = 1;
  for (const Report& stuck : {seen, forgets, waits, through}) {
    const auto outcome = WithoutRank1(In(At(4)), stuck, In(Contributed(4, false))).Decide();
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->step, 5);
    ASSERT_THAT(outcome->ended, SizeIs(1));
    EXPECT_TRUE(outcome->ended[0].dropped);
    ASSERT_TRUE(outcome->change.has_value());
    EXPECT_THAT(outcome->change->newcomers, IsEmpty());
    EXPECT_EQ(outcome->change->root, 0);
    EXPECT_THAT(outcome->change->ranks, ElementsAre(0, 2, 3));
    EXPECT_GT(outcome->change->collectives, stuck.collectives);
    EXPECT_EQ(outcome->ended[0].change, outcome->change);
  }
}

TEST(GatheringShrinks, AStepThatAllWhoAreHereAreReadyForEndsWithTheLostOnesPart) {
  const auto outcome = WithoutRank1(In(Ready(4)), In(Ready(4)), In(Ready(4))).Decide();
  ExpectEnded(outcome, 4, Verdict::kApply);
  EXPECT_EQ(outcome->roster->number, 2U);
}

// Rank 3 has not heard of roster 2, nor of the step that was dropped with it.
TEST(GatheringShrinks, WhoHasNotHeardOfARosterHearsOfTheNextOne) {
  Report heard = In(At(5), 2, {0, 2, 3});
  heard.last = Verdict::kSkip;
  heard.collectives = 1;
  const auto outcome = WithoutRank1(heard, heard, In(At(4))).Decide();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->step, 6) << "broadcasts are not numbered alike";
  ASSERT_TRUE(outcome->change.has_value());
  EXPECT_EQ(outcome->change->collectives, 2U);
  EXPECT_EQ(outcome->roster, (wire::Roster{.number = 3, .ranks = {0, 2, 3}}));
}

TEST(GatheringShrinks, WhoIsInNoLaterRosterIsLeftBehind) {
  Gathering gathering(kKey, 5, 4, true);
  for (const int rank : {0, 2, 3}) gathering.Take(rank, In(At(9), 2, {0, 2, 3}));
  gathering.Take(1, In(Ready(4)));
  EXPECT_THAT(gathering.LeftBehind(), ElementsAre(1));
  gathering.SetGone(1);
  EXPECT_THAT(gathering.LeftBehind(), IsEmpty());
  ASSERT_TRUE(gathering.Decide().ok());
  EXPECT_EQ(gathering.Decide()->step, 9);
}

TEST(GatheringShrinks, AMajorityOfThoseWhoConcludedTheLastStepIsAQuorum) {
  Gathering gathering(kKey, 5, 4, true);
  Report two = In(At(9), 3, {0, 1});
  two.concluded = {0, 1};
  gathering.Take(0, two);
  EXPECT_FALSE(gathering.IsQuorum({0}, 1)) << "one of two";
  gathering.Take(2, In(At(4)));
  gathering.Take(3, In(At(4)));
  EXPECT_FALSE(gathering.IsQuorum({2, 3}, 1)) << "two of four";
  EXPECT_FALSE(gathering.IsQuorum({0, 2, 3}, 1)) << "rank 0 knows of a later step";
  gathering.Take(1, two);
  EXPECT_TRUE(gathering.IsQuorum({0, 1}, 1));
  EXPECT_FALSE(gathering.IsQuorum({0, 1}, 3)) << "fewer than are allowed";
}

// Of four, two have the model: the others have concluded a skipped step with them, and no other.
TEST(GatheringShrinks, AllWhoConcludedTheLastStepAreAQuorumWithNewcomers) {
  Gathering gathering(kKey, 5, 5, true);
  const Report member = In(At(5), 4, {0, 1, 2, 3});
  for (const int rank : {0, 1}) gathering.Take(rank, member);
  Report newcomer = member;
  newcomer.newcomer = true;
  for (const int rank : {2, 3}) gathering.Take(rank, newcomer);
  gathering.Take(4, std::nullopt);
  EXPECT_TRUE(gathering.IsQuorum({0, 1, 2, 3, 4}, 1));
  EXPECT_TRUE(gathering.IsQuorum({0, 1, 2, 3}, 1));
  EXPECT_FALSE(gathering.IsQuorum({0, 1, 2, 3}, 3)) << "fewer with the model than are allowed";
  EXPECT_FALSE(gathering.IsQuorum({0, 1, 2, 4}, 1)) << "rank 3 may be elsewhere";
  gathering.Take(3, std::nullopt);
  EXPECT_FALSE(gathering.IsQuorum({0, 1, 2, 3, 4}, 1)) << "its predecessor may be elsewhere";
  newcomer.roster = {.number = 5, .ranks = {0, 1, 2, 3}};
  gathering.Take(3, newcomer);
  EXPECT_FALSE(gathering.IsQuorum({0, 1, 2, 3, 4}, 1)) << "of another roster";
}

// The others were told of a roster without rank 0, and their next daemon was lost before it began.
// It waits for bytes that nobody will send.
TEST(GatheringShrinks, ABroadcastIsVoidForWhoHasNotHeardSo) {
  for (const std::uint64_t others : {std::uint64_t{1}, std::uint64_t{2}}) {
    Gathering gathering(kKey, 5, 4, true);
    Report waits = In(At(4));
    waits.in_collective = true;
    gathering.Take(0, waits);
    Report heard = In(At(5));
    heard.last = Verdict::kSkip;
    heard.collectives = others;
    for (const int rank : {1, 2, 3}) gathering.Take(rank, heard);
    const auto outcome = gathering.Decide();
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->step, 6);
    ASSERT_THAT(outcome->ended, SizeIs(2));
    ASSERT_TRUE(outcome->ended[1].change.has_value());
    EXPECT_EQ(outcome->ended[1].change->collectives, others + 1);
  }
}

// All of a roster that has grown may have concluded the step, and some may be going on with it.
// Rank 2 is READY for the step that rank 3 has seen applied: when it has heard so, both know that
// three of four have concluded it.
TEST(GatheringShrinks, WhoHearsOfAStepsEndHasConcludedIt) {
  Gathering gathering(kKey, 5, 4, /*shrinks=*/true);
  gathering.Take(2, In(Ready(4), 2, {1, 2, 3}));
  Report ahead = In(At(5), 2, {1, 2, 3});
  ahead.concluded = {1, 2, 3};
  gathering.Take(3, ahead);
  gathering.SetGone(0);
  gathering.SetGone(1);
  EXPECT_TRUE(gathering.IsQuorum({2, 3}, 1));
  const auto outcome = gathering.Decide();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  gathering.Tell(*outcome);
  EXPECT_TRUE(gathering.IsQuorum({2, 3}, 1));
}

TEST(GatheringShrinks, WhoIsReadyNeedsAMajorityOfItsRosterToo) {
  Gathering gathering(kKey, 5, 5, true);
  for (const int rank : {1, 2}) {
    Report ready = In(Ready(4), 3, {0, 1, 2, 3, 4});
    ready.concluded = {0, 1, 2};
    gathering.Take(rank, ready);
  }
  EXPECT_FALSE(gathering.IsQuorum({1, 2}, 1));
}

// They are in that roster, and here. Had the step been concluded, they would be no newcomers.
TEST(GatheringShrinks, NewcomersOfARosterCountWhereSomebodyIsReady) {
  Gathering gathering(kKey, 5, 4, true);
  for (const int rank : {0, 3}) {
    Report ready = In(Ready(5), 5, {0, 1, 2, 3});
    ready.concluded = {0, 1, 3};
    gathering.Take(rank, ready);
  }
  EXPECT_FALSE(gathering.IsQuorum({0, 3}, 1)) << "the others may have concluded it";
  for (const int rank : {1, 2}) {
    Report newcomer = In(At(5), 5, {0, 1, 2, 3});
    newcomer.newcomer = true;
    gathering.Take(rank, newcomer);
  }
  EXPECT_TRUE(gathering.IsQuorum({0, 1, 2, 3}, 1));
  Report other = In(At(5), 5, {1, 2, 3});
  other.newcomer = true;
  gathering.Take(1, other);
  EXPECT_TRUE(gathering.IsQuorum({0, 1, 2, 3}, 1));
  gathering.Take(2, other);
  EXPECT_FALSE(gathering.IsQuorum({0, 1, 2, 3}, 1)) << "of another roster";
}

// Two daemons have made a roster 2 each; a step was concluded in one of them.
TEST(GatheringShrinks, OfTwoRostersOfOneNumberThatWithAConclusionCounts) {
  Gathering gathering(kKey, 5, 3, true);
  Report skipped = In(At(5), 2, {0, 1});
  skipped.last = Verdict::kSkip;
  skipped.concluded = {0, 1, 2};
  gathering.Take(0, skipped);
  for (const int rank : {1, 2}) {
    Report applied = In(At(5), 2, {1, 2});
    applied.concluded = {1, 2};
    gathering.Take(rank, applied);
  }
  EXPECT_THAT(gathering.LeftBehind(), ElementsAre(0));
  const auto both = gathering.Decide();
  EXPECT_THAT(std::string(both.status().message()), HasSubstr("not for rank 1"));
  gathering.SetGone(0);
  EXPECT_TRUE(gathering.Decide().ok());
}

// They applied it without it, and no Welcome has told them of another roster.
TEST(GatheringShrinks, WhoLacksAStepThatOthersHaveAppliedIsLeftBehind) {
  Gathering gathering(kKey, 5, 3, true);
  for (const int rank : {0, 1}) gathering.Take(rank, In(At(5), 1, {0, 1, 2}));
  gathering.Take(2, In(Contributed(4, true), 1, {0, 1, 2}));
  EXPECT_THAT(gathering.LeftBehind(), ElementsAre(2));
  gathering.Take(2, In(Ready(4), 1, {0, 1, 2}));
  EXPECT_THAT(gathering.LeftBehind(), IsEmpty());
}

TEST(GatheringShrinks, AProcessInAGoneRanksPlaceGetsTheModel) {
  Gathering gathering(kKey, 5, 4, true);
  gathering.SetGone(3);
  for (const int rank : {0, 2}) gathering.Take(rank, In(At(6), 2, {0, 2}));
  gathering.Take(1, std::nullopt);
  const auto outcome = gathering.Decide();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->step, 7);
  EXPECT_THAT(outcome->change->newcomers, ElementsAre(1));
  EXPECT_THAT(outcome->change->ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(outcome->roster, (wire::Roster{.number = 3, .ranks = {0, 1, 2}}));
}

// ---- With leaf daemons

// Of six: a leaf has ranks 0 to 2, another one 4 and 5, and 3 is a trainer.
class GatheringLeaves : public ::testing::Test {
 protected:
  static Report InAll(Report report) {
    report = In(std::move(report), 1, kAll);
    report.concluded = kAll;
    report.has_leaves = true;
    return report;
  }
  void Lose(int first, int last) {
    for (int rank = first; rank <= last; ++rank) gathering_.SetGone(rank);
  }

  static inline const std::vector<int> kAll = {0, 1, 2, 3, 4, 5};
  Gathering gathering_{kKey, 5, 6, /*shrinks=*/true};
};

// Gradients that are kept have weights of the old roster, and members behind a leaf hear of the
// new one with the step.
TEST_F(GatheringLeaves, AStepIsDroppedWithTheRosterOfAllRanks) {
  gathering_.SetPlace(0, 3);
  gathering_.Take(0, InAll(Contributed(4, false)));
  gathering_.Take(3, InAll(Contributed(4, false)));
  Lose(4, 5);
  EXPECT_TRUE(gathering_.IsQuorum({0, 1, 2, 3}, 1));
  const auto outcome = gathering_.Decide();
  ExpectEnded(outcome, 4, Verdict::kSkip);
  ASSERT_TRUE(outcome->ended[0].change.has_value());
  EXPECT_THAT(outcome->ended[0].change->ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(outcome->ended[0].change->newcomers, IsEmpty());
  EXPECT_EQ(outcome->roster, (wire::Roster{.number = 2, .ranks = {0, 1, 2, 3}}));
  EXPECT_THAT(outcome->here, ElementsAre(0, 3)) << "processes";
}

// The last leaf is gone, and a trainer's gradient had a weight because of it.
TEST_F(GatheringLeaves, TrainersWithoutThemDropTheStep) {
  for (int rank = 0; rank < 4; ++rank) {
    Report report = InAll(Contributed(4, false));
    report.has_leaves = rank == 3;
    gathering_.Take(rank, report);
  }
  Lose(4, 5);
  ExpectEnded(gathering_.Decide(), 4, Verdict::kSkip);
}

TEST_F(GatheringLeaves, MembersBehindThemAreOfTheMajority) {
  gathering_.SetPlace(0, 3);
  gathering_.Take(0, InAll(At(4)));
  gathering_.Take(3, InAll(At(4)));
  EXPECT_FALSE(gathering_.IsQuorum({0, 1, 2}, 1)) << "half of them";
  EXPECT_TRUE(gathering_.IsQuorum({0, 1, 2, 3}, 4));
  EXPECT_FALSE(gathering_.IsQuorum({0, 1, 2, 3}, 5)) << "--min-members";
  EXPECT_FALSE(gathering_.IsQuorum({3}, 1));
}

TEST_F(GatheringLeaves, AllBehindOneThatIsReadyConcludeTheStep) {
  gathering_.SetPlace(0, 3);
  gathering_.Take(0, InAll(Ready(4)));
  gathering_.Take(3, InAll(Ready(4)));
  Lose(4, 5);
  EXPECT_TRUE(gathering_.IsQuorum({0, 1, 2, 3}, 1));
  const auto outcome = gathering_.Decide();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_THAT(outcome->ended, SizeIs(2));
  EXPECT_EQ(outcome->ended[0].verdict, Verdict::kApply);
  EXPECT_TRUE(outcome->ended[1].dropped) << "with which all hear of the roster";
  EXPECT_THAT(outcome->ended[1].change->ranks, ElementsAre(0, 1, 2, 3));
}

// A leaf that was lost while members gather, and a trainer in its first rank's place.
TEST_F(GatheringLeaves, WhoComesInTheirPlaceStandsForItself) {
  gathering_.SetPlace(0, 3);
  gathering_.Take(0, InAll(At(4)));
  gathering_.Take(3, InAll(At(4)));
  gathering_.SetPlace(4, 2);
  gathering_.Take(4, InAll(At(4)));
  gathering_.SetPlace(4, std::nullopt);
  gathering_.Take(4, std::nullopt);
  Lose(5, 5);
  const auto outcome = gathering_.Decide();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(outcome->change->newcomers, ElementsAre(4));
  EXPECT_THAT(outcome->change->ranks, ElementsAre(0, 1, 2, 3, 4));
}

// Who was to be left out is back before the others have begun without it.
TEST_F(GatheringLeaves, WhoWereToldOfAnotherRosterHearOfThisOne) {
  gathering_.SetPlace(0, 3);
  gathering_.Take(0, InAll(At(4)));
  gathering_.Take(3, InAll(At(4)));
  Lose(4, 5);
  const auto without = gathering_.Decide();
  ASSERT_TRUE(without.ok()) << without.status();
  gathering_.Tell(*without);
  gathering_.SetPlace(4, 2);
  gathering_.Take(4, InAll(At(4)));
  const auto outcome = gathering_.Decide();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_THAT(outcome->ended, SizeIs(2));
  EXPECT_THAT(outcome->ended[0].change->ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(outcome->ended[1].dropped);
  EXPECT_THAT(outcome->ended[1].change->ranks, ElementsAre(0, 1, 2, 3, 4, 5));
}

}  // namespace
}  // namespace gradwire::server

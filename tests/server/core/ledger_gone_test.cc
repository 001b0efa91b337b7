// The ledger of a further daemon: what it makes of what members know from the last one.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/core/ledger_trainers.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(FurtherLedger, TheResidualOfWhoIsGoneIsLostAndItsContributionsStay) {
  std::vector<Trainer> trainers(3);
  Daemon(3).Reduce(trainers, kFirst);
  for (Trainer& trainer : trainers) trainer.Rejoin();
  Daemon daemon(3, 1, /*gone=*/{2});
  // 3 and the residuals' -1 come to a mean of 1 and no residual.
  daemon.Reduce(trainers, {{.gradient = 1, .mean = 1, .residual = 1},
                           {.gradient = 2, .mean = 1, .residual = -1}});
  EXPECT_EQ(daemon.total(), (LedgerRow{.contributed = 18 + 3,
                                       .applied = 15 + 2,
                                       .residual = 0,
                                       .lost = 4,
                                       .contributed_squares = 126 + 5,
                                       .residual_squares = 2,
                                       .lost_squares = 16,
                                       .rounded_squares = 222 + 9}));
  EXPECT_EQ(daemon.total().balance(), 0);
  EXPECT_EQ(daemon.ledger().incomplete(), "");
  EXPECT_EQ(daemon.ledger().members(), 2);
  EXPECT_THAT(daemon.Logged(),
              ElementsAre("ledger: residuals with a norm of 4 are lost with members that are "
                          "gone"));
}

TEST(FurtherLedger, KnowsThoseThatWereGoneBefore) {
  std::vector<Trainer> trainers(3);
  Daemon(3).Reduce(trainers, kFirst);
  for (Trainer& trainer : trainers) trainer.Rejoin();
  Daemon(3, 1, /*gone=*/{2})
      .Reduce(trainers, {{.gradient = 1, .mean = 1, .residual = 1},
                         {.gradient = 2, .mean = 1, .residual = -1}});
  for (Trainer& trainer : trainers) trainer.Rejoin();
  Daemon daemon(3, 2, /*gone=*/{1, 2});
  daemon.Reduce(trainers, {{.gradient = 2, .mean = 2, .residual = 1}});
  EXPECT_EQ(daemon.total(), (LedgerRow{.contributed = 18 + 3 + 2,
                                       .applied = 15 + 2 + 2,
                                       .residual = 1,
                                       .lost = 4 - 1,
                                       .contributed_squares = 126 + 5 + 4,
                                       .residual_squares = 1,
                                       .lost_squares = 16 + 1,
                                       .rounded_squares = 222 + 9 + 4 + 4 + 1}));
  EXPECT_EQ(daemon.total().balance(), 0);
  EXPECT_EQ(daemon.ledger().incomplete(), "");
}

TEST(FurtherLedger, ANewMemberAtTheRankDoesNotBringTheResidualBack) {
  std::vector<Trainer> trainers(3);
  Daemon(3).Reduce(trainers, kFirst);
  for (Trainer& trainer : trainers) trainer.Rejoin();
  trainers[2] = Trainer();
  Daemon daemon(3, 1);
  daemon.SetNewcomer(2);
  daemon.Reduce(trainers, {{.gradient = 1, .mean = 1, .residual = 1},
                           {.gradient = 2, .mean = 1, .residual = -1},
                           {.gradient = 1, .mean = 1, .residual = 0}});
  EXPECT_EQ(daemon.total().contributed, 18 + 4);
  EXPECT_EQ(daemon.total().applied, 15 + 3);
  EXPECT_EQ(daemon.total().residual, 0);
  EXPECT_EQ(daemon.total().lost, 4);
  EXPECT_EQ(daemon.ledger().incomplete(), "");
}

// In fractions, so that subtracting sums leaves something.
TEST(FurtherLedger, NothingIsLostWhereNobodyIsGone) {
  std::vector<Trainer> trainers(3);
  for (Daemon daemon(3); daemon.ledger().settled() < 20;) {
    daemon.Reduce(trainers, {{.gradient = 0.1, .mean = 0.7, .residual = 0.7},
                             {.gradient = 0.7, .mean = 0.7, .residual = 0.3},
                             {.gradient = 1.3, .mean = 0.7, .residual = 0.9}});
  }
  // What squares of these residuals leave, 0.49 + 0.09 + 0.81 - 0.49 - 0.09 - 0.81, is above 0.
  ASSERT_GT(0.7 * 0.7 + 0.3 * 0.3 + 0.9 * 0.9 - 0.7 * 0.7 - 0.3 * 0.3 - 0.9 * 0.9, 0);
  for (Trainer& trainer : trainers) trainer.Rejoin();
  Daemon daemon(3, 21);
  daemon.Reduce(trainers, {{.gradient = 0.1}, {.gradient = 0.1}, {.gradient = 0.1}});
  EXPECT_NEAR(daemon.total().contributed, 21 * 2.1 + 0.3, 1e-9);
  EXPECT_NEAR(daemon.total().applied, 21 * 2.1, 1e-9);
  EXPECT_NEAR(daemon.total().lost, 0, 1e-9);
  EXPECT_EQ(daemon.total().lost_squares, 0);
  EXPECT_EQ(daemon.ledger().incomplete(), "");
  EXPECT_THAT(daemon.Logged(), IsEmpty());
}

// ---- Steps whose total nobody has

// Step 1 of three members. Nobody hears its total.
void ReduceUnheard(std::vector<Trainer>& trainers) {
  Daemon daemon(3);
  daemon.Reduce(trainers, kFirst);
  // 18 and the residuals' 3 come to a mean of 7 and no residual.
  daemon.Reduce(
      trainers,
      {{.gradient = 3, .mean = 7}, {.gradient = 6, .mean = 7}, {.gradient = 9, .mean = 7}},
      /*lives=*/false);
  EXPECT_EQ(daemon.total().balance(), 0);
  for (Trainer& trainer : trainers) trainer.Rejoin();
}

TEST(FurtherLedger, WhatIsMissingSinceTheLastTotalCountsAsLost) {
  std::vector<Trainer> trainers(3);
  ReduceUnheard(trainers);
  Daemon daemon(3, 2, /*gone=*/{2});
  const std::vector<Change> changes = {{.gradient = 1, .mean = 1.5}, {.gradient = 2, .mean = 1.5}};
  daemon.Reduce(trainers, changes);
  EXPECT_THAT(daemon.ledger().incomplete(), HasSubstr("in step 1 is not known"));
  // Of the member that is gone, step 0 is known: 9 contributed, 5 applied, 4 in its residual. The
  // others have 7 + 14 contributed and 13.5 + 13.5 applied.
  EXPECT_EQ(daemon.total().contributed, 30);
  EXPECT_EQ(daemon.total().applied, 32);
  EXPECT_EQ(daemon.total().residual, 0);
  EXPECT_EQ(daemon.total().lost, 4 - 6);
  EXPECT_EQ(daemon.total().lost_squares, 16 + 36);
  daemon.Reduce(trainers, changes);
  EXPECT_EQ(daemon.total().balance(), 0) << "later steps are accounted for";
  EXPECT_EQ(daemon.total().lost, 4 - 6);
  EXPECT_EQ(daemon.total().lost_squares, 16 + 36);
  EXPECT_THAT(daemon.ledger().incomplete(), HasSubstr("in step 1 is not known"));
}

// Their accounts are all there ever were.
TEST(FurtherLedger, NoTotalIsMissedWhereNobodyIsGone) {
  std::vector<Trainer> trainers(3);
  ReduceUnheard(trainers);
  Daemon daemon(3, 2);
  daemon.Reduce(
      trainers,
      {{.gradient = 1, .mean = 1}, {.gradient = 1, .mean = 1}, {.gradient = 1, .mean = 1}});
  EXPECT_EQ(daemon.ledger().incomplete(), "");
  EXPECT_EQ(daemon.total(), (LedgerRow{.contributed = 18 + 18 + 3,
                                       .applied = 15 + 21 + 3,
                                       .contributed_squares = 126 + 126 + 3,
                                       .rounded_squares = 222 + 126 + 147 + 6}));
}

TEST(FurtherLedger, TheFirstStepNeedsNoTotalUnlessSomebodyIsGone) {
  for (const bool gone : {false, true}) {
    SCOPED_TRACE(gone);
    std::vector<Trainer> trainers(3);
    Daemon(3).Reduce(
        trainers,
        {{.gradient = 3, .mean = 6}, {.gradient = 6, .mean = 6}, {.gradient = 9, .mean = 6}},
        /*lives=*/false);
    for (Trainer& trainer : trainers) trainer.Rejoin();
    Daemon daemon(3, 1, gone ? std::vector<int>{2} : std::vector<int>{});
    daemon.Reduce(trainers, std::vector<Change>(gone ? 2 : 3, {.gradient = 1, .mean = 1}));
    EXPECT_EQ(daemon.total().contributed, gone ? 9 + 2 : 18 + 3);
    EXPECT_EQ(daemon.total().applied, gone ? 12 + 2 : 18 + 3);
    EXPECT_EQ(daemon.total().lost, gone ? -3 : 0);
    EXPECT_EQ(daemon.total().balance(), 0);
    EXPECT_THAT(daemon.ledger().incomplete(), HasSubstr(gone ? "in step 0 is not known" : ""));
    EXPECT_EQ(daemon.ledger().incomplete().empty(), !gone);
  }
}

// Somebody may have been there before them.
// Whoever is here has all steps that anybody knows.
TEST(FurtherLedger, WithoutAnyTotalAllIsKnownIfAllWereThere) {
  std::vector<Trainer> trainers(3);
  Daemon first(3);
  for (int step = 0; step < 2; ++step) {
    first.Reduce(trainers, std::vector<Change>(3, {.gradient = 2, .mean = 2}), /*lives=*/false);
  }
  for (Trainer& trainer : trainers) trainer.Rejoin();
  Daemon daemon(3, 2);
  daemon.Reduce(trainers, std::vector<Change>(3, {.gradient = 1, .mean = 1}));
  EXPECT_EQ(daemon.ledger().incomplete(), "");
  EXPECT_EQ(daemon.total().contributed, 3 * (2 + 2 + 1));
  EXPECT_EQ(daemon.total().applied, 3 * (2 + 2 + 1));
  EXPECT_EQ(daemon.total().lost, 0);
}

// A new member has no account of the step, so that it is gone from it as well.
TEST(FurtherLedger, ANewMemberDoesNotKnowHowTheLastStepEnded) {
  std::vector<Trainer> trainers(3);
  ReduceUnheard(trainers);
  trainers[2] = Trainer();
  Daemon daemon(3, 2);
  daemon.SetNewcomer(2);
  daemon.Reduce(
      trainers,
      {{.gradient = 1, .mean = 1}, {.gradient = 1, .mean = 1}, {.gradient = 1, .mean = 1}});
  EXPECT_THAT(daemon.ledger().incomplete(), HasSubstr("in step 1 is not known"));
  EXPECT_EQ(daemon.total().contributed, 7 + 13 + 9 + 1);
  EXPECT_EQ(daemon.total().applied, 13 + 13 + 5 + 1);
  EXPECT_EQ(daemon.total().lost, 4 - 6);
  EXPECT_EQ(daemon.total().balance(), 0);
}

// Rank 0 has heard that step 1 is skipped. Rank 1 has not, and a further daemon tells it that the
// step is dropped: what nobody applied needs no total.
TEST(FurtherLedger, AStepThatWasSkippedForSomeAndDroppedForOthersIsKnown) {
  for (const bool has_total : {false, true}) {
    SCOPED_TRACE(has_total);
    std::vector<Trainer> trainers(3);
    Daemon first(3);
    first.Reduce(trainers, kFirst);
    for (int rank = 0; rank < 3; ++rank) {
      const Change change{.gradient = 10. + rank};
      ASSERT_TRUE(first.Take(rank, trainers[static_cast<std::size_t>(rank)].Tell(1, change)).ok());
    }
    first.End(Verdict::kSkip);
    trainers[0].Skip(1, 10);
    if (has_total) trainers[0].Hear(first.ledger().total());
    trainers[1].Drop(11);
    for (Trainer& trainer : trainers) trainer.Rejoin();
    Daemon daemon(3, 2, /*gone=*/{2});
    daemon.Reduce(trainers, {{.gradient = 1, .mean = 1, .residual = 1},
                             {.gradient = 2, .mean = 1, .residual = -1}});
    EXPECT_EQ(daemon.ledger().incomplete(), "");
    // The gradient of the member that is gone, 12, is in neither of them.
    EXPECT_EQ(daemon.total(), (LedgerRow{.contributed = 18 + 10 + 11 + 3,
                                         .applied = 15 + 2,
                                         .residual = 0,
                                         .skipped = 10,
                                         .dropped = 11,
                                         .lost = 4,
                                         .contributed_squares = 126 + 100 + 121 + 5,
                                         .residual_squares = 2,
                                         .skipped_squares = 100,
                                         .dropped_squares = 121,
                                         .lost_squares = 16,
                                         .rounded_squares = 222 + 9}));
    EXPECT_EQ(daemon.total().balance(), 0);
  }
}

}  // namespace
}  // namespace gradwire::server

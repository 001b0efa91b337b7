// The session's ledger by itself, at one daemon: sums that are worked out by hand.
#include "server/core/ledger.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/core/ledger_trainers.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Ledger, AStepIsSettledWithItsVerdictAndAllAccountsWhicheverComesLast) {
  for (const int accounts_before : {0, 1, 2, 3}) {
    SCOPED_TRACE(accounts_before);
    Daemon daemon(3);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == accounts_before) daemon.End(Verdict::kApply);
      EXPECT_EQ(daemon.ledger().settled(), -1);
      EXPECT_THAT(daemon.ledger().total(), IsEmpty());
      ASSERT_TRUE(
          daemon.Take(rank, Trainer().Tell(0, kFirst[static_cast<std::size_t>(rank)])).ok());
    }
    if (accounts_before == 3) daemon.End(Verdict::kApply);
    EXPECT_EQ(daemon.ledger().settled(), 0);
    EXPECT_THAT(daemon.ledger().total(), ElementsAre(kAfterFirst));
    EXPECT_EQ(daemon.total().balance(), 0);
    EXPECT_EQ(daemon.ledger().members(), 3);
    EXPECT_EQ(daemon.ledger().incomplete(), "");
  }
}

TEST(Ledger, ASkippedStepLeavesWhatWasAppliedAndTheResiduals) {
  Daemon daemon(3);
  std::vector<Trainer> trainers(3);
  daemon.Reduce(trainers, kFirst);
  for (int rank = 0; rank < 3; ++rank) {
    const Change change{.gradient = 2. * rank, .mean = 100, .residual = 100};
    ASSERT_TRUE(daemon.Take(rank, trainers[static_cast<std::size_t>(rank)].Tell(1, change)).ok());
  }
  daemon.End(Verdict::kSkip);
  LedgerRow expected = kAfterFirst;
  expected.contributed += 0 + 2 + 4;
  expected.contributed_squares += 0 + 4 + 16;
  expected.skipped = 6;
  expected.skipped_squares = 20;
  EXPECT_EQ(daemon.total(), expected);
  EXPECT_EQ(daemon.total().balance(), 0);
}

// Its member has the value in none of its later accounts.
TEST(Ledger, AGradientThatIsNotFiniteCountsAsNothing) {
  Daemon daemon(2);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ASSERT_TRUE(daemon.Take(0, Trainer().Tell(0, {.gradient = 3})).ok());
  ASSERT_TRUE(daemon.Take(1, Trainer().Tell(0, {.gradient = nan})).ok());
  daemon.End(Verdict::kSkip);
  EXPECT_EQ(
      daemon.total(),
      (LedgerRow{.contributed = 3, .skipped = 3, .contributed_squares = 9, .skipped_squares = 9}));
}

TEST(Ledger, ARepeatedAccountCountsOnce) {
  Daemon daemon(3);
  std::vector<wire::LedgerAccount> accounts;
  accounts.reserve(kFirst.size());
  for (const Change& change : kFirst) accounts.push_back(Trainer().Tell(0, change));
  ASSERT_TRUE(daemon.Take(0, accounts[0]).ok());
  ASSERT_TRUE(daemon.Take(0, accounts[0]).ok());
  // What was said first counts.
  ASSERT_TRUE(daemon.Take(0, Trainer().Tell(0, {.gradient = 1000})).ok());
  ASSERT_TRUE(daemon.Take(1, accounts[1]).ok());
  daemon.End(Verdict::kApply);
  ASSERT_TRUE(daemon.Take(1, accounts[1]).ok()) << "the step is over";
  ASSERT_TRUE(daemon.Take(2, accounts[2]).ok());
  EXPECT_EQ(daemon.total(), kAfterFirst);
  ASSERT_TRUE(daemon.Take(2, accounts[2]).ok()) << "and settled";
  EXPECT_EQ(daemon.total(), kAfterFirst);
  EXPECT_THAT(daemon.Told(), SizeIs(1));
}

// What the next accounts begin with has it all.
TEST(Ledger, AStepWithoutAllAccountsIsInTheTotalOfTheNext) {
  Daemon daemon(2);
  std::vector<Trainer> trainers(2);
  const Change first{.gradient = 3, .mean = 5, .residual = -2};
  const Change second{.gradient = 7, .mean = 5, .residual = 2};
  ASSERT_TRUE(daemon.Take(0, trainers[0].Tell(0, first)).ok());
  daemon.End(Verdict::kApply);
  trainers[0].Apply(0, first);
  trainers[1].Apply(0, second);
  ASSERT_TRUE(daemon.Take(0, trainers[0].Tell(1, {.gradient = 1, .mean = 1})).ok());
  ASSERT_TRUE(daemon.Take(1, trainers[1].Tell(1, {.gradient = 1, .mean = 1})).ok());
  EXPECT_EQ(daemon.ledger().settled(), -1);
  daemon.End(Verdict::kApply);
  EXPECT_EQ(daemon.ledger().settled(), 1);
  EXPECT_EQ(daemon.total(), (LedgerRow{.contributed = 12,
                                       .applied = 12,
                                       .contributed_squares = 9 + 49 + 1 + 1,
                                       .rounded_squares = 38 + 78 + 2 + 2}));
}

TEST(Ledger, MembersAreToldTheTotalWhereTheyAreToKeepIt) {
  std::vector<Trainer> trainers(2);
  const std::vector<Change> changes = {{.gradient = 3, .mean = 3}, {.gradient = 3, .mean = 3}};
  Daemon daemon(2);
  daemon.Reduce(trainers, changes);
  ASSERT_THAT(daemon.Told(), SizeIs(1));
  EXPECT_THAT(daemon.Told()[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(std::get<wire::LedgerTotal>(daemon.Told()[0].frame.header),
            (wire::LedgerTotal{.step = 0,
                               .rows = {{.contributed = 6,
                                         .applied = 6,
                                         .contributed_squares = 18,
                                         .rounded_squares = 36}}}));
  Daemon only(2, 0, {}, /*tells=*/false);
  only.Reduce(trainers, changes);
  EXPECT_THAT(only.Told(), IsEmpty());
}

TEST(Ledger, SilentAreThoseWhoAreHereAndHaveSentNone) {
  Daemon daemon(4, 0, /*gone=*/{3});
  EXPECT_THAT(daemon.Silent(), ElementsAre(0, 1, 2));
  ASSERT_TRUE(daemon.Take(1, Trainer().Tell(0, {})).ok());
  EXPECT_THAT(daemon.Silent(), ElementsAre(0, 2));
  daemon.End(Verdict::kApply);
  daemon.End(Verdict::kApply);
  EXPECT_THAT(daemon.Silent(), ElementsAre(0, 2)) << "an account of any step will do";
  EXPECT_EQ(daemon.ledger().settled(), -1);
  const Membership absent(2, {}, absl::UnixEpoch());
  EXPECT_THAT(Ledger(1).Silent(absent), IsEmpty()) << "nobody is here";
}

TEST(Ledger, NobodyIsSilentWithoutOne) {
  Membership membership(1, {}, absl::UnixEpoch());
  ASSERT_TRUE(membership.Join(0, 1, "s", absl::UnixEpoch()).ok());
  membership.Attach(0, 1, absl::UnixEpoch());
  EXPECT_THAT(Ledger(1).Silent(membership), ElementsAre(0));
  EXPECT_THAT(Ledger(0).Silent(membership), IsEmpty());
}

TEST(Ledger, RefusesByFieldAndChangesNothing) {
  Daemon daemon(2);
  const auto refusal = [&](const auto& change) {
    wire::LedgerAccount account = Trainer().Tell(0, {.gradient = 1});
    account.earlier = {{.step = 0, .own = std::vector<LedgerRow>(1)}};
    change(account);
    const absl::Status status = daemon.Take(0, account);
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  EXPECT_EQ(refusal([](wire::LedgerAccount& account) { account.before.clear(); }),
            "ledger_account.before: has 0 entries; allowed: 1 to 1");
  EXPECT_EQ(refusal([](wire::LedgerAccount& account) { account.change.resize(2); }),
            "ledger_account.change: has 2 entries; allowed: 1 to 1");
  EXPECT_EQ(refusal([](wire::LedgerAccount& account) { account.earlier[0].own.clear(); }),
            "ledger_account.earlier.own: has 0 entries; allowed: 1 to 1");
  EXPECT_EQ(refusal([](wire::LedgerAccount& account) { account.earlier[0].total.resize(3); }),
            "ledger_account.earlier.total: has 3 entries; allowed: 1 to 1");
  EXPECT_EQ(refusal([](wire::LedgerAccount& account) { account.step = 1; }),
            "sent its account of step 1; the session is at step 0");
  EXPECT_THAT(daemon.Silent(), ElementsAre(0, 1));
  Ledger none(0);
  EXPECT_EQ(none.Take(0, {}, 0).message(), "sent an account; the session has no ledger");
}

}  // namespace
}  // namespace gradwire::server

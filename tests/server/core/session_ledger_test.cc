// The ledger of a session: when accounts may come, what ends a step in it, and who hears of totals.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/step.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::string kKey(wire::kSessionKeyBytes, 'k');

// Of parameters w, b and e, one row each.
SessionOptions Options(int world_size = 2) {
  SessionOptions options = SmallOptions(world_size);
  options.ledger = true;
  return options;
}

SessionOptions Outliving() {
  SessionOptions options = Options();
  options.lineage = 5;
  options.coordinator_grace = absl::Seconds(60);
  options.session_key = kKey;
  return options;
}

// A step that gives the gradient `gradient` of w, and the same to all as their mean.
wire::LedgerAccount Account(std::int64_t step, double gradient, double mean) {
  wire::LedgerAccount account{.step = step, .generation = 7};
  account.before.resize(3);
  account.change.resize(3);
  account.change[0] = {.contributed = gradient,
                       .applied = mean,
                       .contributed_squares = gradient * gradient,
                       .rounded_squares = gradient * gradient + mean * mean};
  return account;
}

// ---- What is not allowed

struct Breach {
  const char* name;
  std::function<void(wire::LedgerAccount&)> change;
  std::string message;
  bool ledger = true;
};

class AccountBreach : public testing::TestWithParam<Breach> {};

TEST_P(AccountBreach, FailsTheSessionAndBlamesTheSender) {
  SessionHarness harness(GetParam().ledger ? Options() : SmallOptions());
  harness.Start();
  wire::LedgerAccount account = Account(0, 1, 1);
  account.earlier.resize(1);
  account.earlier[0].own.resize(3);
  GetParam().change(account);
  harness.Receive(1, account);
  EXPECT_EQ(harness.session.state(), SessionCore::State::kFailed);
  EXPECT_THAT(harness.Message(), HasSubstr("session \"s\" failed: rank 1: " + GetParam().message));
  for (const int rank : {0, 1}) {
    ASSERT_THAT(harness.Sent<wire::Failure>(rank), SizeIs(1));
    EXPECT_EQ(harness.Sent<wire::Failure>(rank)[0].blamed_rank, 1);
  }
}

using Sent = wire::LedgerAccount;

INSTANTIATE_TEST_SUITE_P(
    All, AccountBreach,
    testing::Values(Breach{"NoBefore", [](Sent& sent) { sent.before.clear(); },
                           "ledger_account.before: has 0 entries; allowed: 3 to 3"},
                    Breach{"LongChange", [](Sent& sent) { sent.change.resize(4); },
                           "ledger_account.change: has 4 entries; allowed: 3 to 3"},
                    Breach{"ShortEarlierOwn", [](Sent& sent) { sent.earlier[0].own.resize(2); },
                           "ledger_account.earlier.own: has 2 entries; allowed: 3 to 3"},
                    Breach{"ShortEarlierTotal", [](Sent& sent) { sent.earlier[0].total.resize(1); },
                           "ledger_account.earlier.total: has 1 entries; allowed: 3 to 3"},
                    Breach{"LaterStep", [](Sent& sent) { sent.step = 1; },
                           "sent its account of step 1; the session is at step 0"},
                    Breach{"OtherGeneration", [](Sent& sent) { sent.generation = 6; },
                           "sent its account of generation 6; this session is generation 7"},
                    Breach{.name = "NoLedger",
                           .change = [](Sent&) {},
                           .message = "sent an account; the session has no ledger",
                           .ledger = false}),
    [](const testing::TestParamInfo<Breach>& tested) { return tested.param.name; });

TEST(LedgerRows, AreOfWhatIsReduced) {
  EXPECT_EQ(SmallOptions().LedgerRows(), 0U);
  EXPECT_EQ(Options().LedgerRows(), 3U);
  SessionOptions large = Options();
  large.manifest = std::vector<ParameterSpec>(1000);
  EXPECT_EQ(large.LedgerRows(), 256U);
  SessionOptions noop = Options();
  noop.spec.comm_hook = "noop";
  EXPECT_EQ(noop.LedgerRows(), 0U);
}

// ---- A step

class SessionLedger : public ::testing::Test {
 protected:
  explicit SessionLedger(const SessionOptions& options = Options()) : harness_(options) {}

  // Ranks 0 and 1 contribute 2 and 4. Until the results are out.
  void Reduce(bool finite = true) {
    harness_.AnnounceAll({0});
    for (const int rank : {0, 1}) harness_.Contribute(rank, 0, 2.F * static_cast<float>(rank + 1));
    harness_.Reduce(finite);
    for (const int rank : {0, 1}) harness_.EndStep(rank);
  }
  void SayReady(int rank) {
    const auto prepared = harness_.Sent<wire::Prepared>(rank);
    ASSERT_THAT(prepared, SizeIs(1));
    harness_.Receive(rank, wire::Ready{.step = prepared[0].step,
                                       .generation = 7,
                                       .verdict = prepared[0].verdict,
                                       .digest = prepared[0].digest});
  }
  const Ledger& ledger() const { return harness_.session.progress().ledger(); }

  SessionHarness harness_;
};

TEST_F(SessionLedger, IsSettledByTheAccountsThatFollowTheEndOfTheStep) {
  harness_.Start();
  EXPECT_THAT(harness_.session.LedgerSilent(), ElementsAre(0, 1));
  Reduce();
  ASSERT_THAT(harness_.Sent<wire::StepDone>(0), SizeIs(1));
  harness_.Receive(1, Account(0, 4, 3));
  EXPECT_EQ(ledger().settled(), -1);
  EXPECT_THAT(harness_.session.LedgerSilent(), ElementsAre(0));
  harness_.Receive(0, Account(0, 2, 3));
  EXPECT_THAT(harness_.session.LedgerSilent(), IsEmpty());
  EXPECT_EQ(ledger().settled(), 0);
  EXPECT_THAT(ledger().total(), ElementsAre(LedgerRow{.contributed = 6,
                                                      .applied = 6,
                                                      .contributed_squares = 4 + 16,
                                                      .rounded_squares = 4 + 9 + 16 + 9},
                                            LedgerRow(), LedgerRow()));
  EXPECT_THAT(harness_.Sent<wire::LedgerTotal>(0), IsEmpty()) << "nobody needs it";
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kRunning) << harness_.Message();
}

TEST_F(SessionLedger, ASkippedStepCountsAsSkipped) {
  harness_.Start();
  Reduce(/*finite=*/false);
  ASSERT_EQ(harness_.Sent<wire::StepDone>(0).at(0).verdict, Verdict::kSkip);
  for (const int rank : {0, 1}) harness_.Receive(rank, Account(0, 2. * (rank + 1), 3));
  EXPECT_EQ(ledger().total().at(0), (LedgerRow{.contributed = 6,
                                               .skipped = 6,
                                               .contributed_squares = 4 + 16,
                                               .skipped_squares = 4 + 16}));
}

// A resume repeats the last account, since the first may have been lost with the stream.
TEST_F(SessionLedger, AnAccountThatAResumeRepeatsCountsOnce) {
  harness_.Start();
  Reduce();
  harness_.Receive(1, Account(0, 4, 3));
  harness_.Detach(1);
  ASSERT_TRUE(harness_.Attach(1).ok());
  harness_.Receive(1, Account(0, 4, 3));
  harness_.Receive(0, Account(0, 2, 3));
  harness_.Receive(1, Account(0, 4, 3));
  EXPECT_EQ(ledger().total().at(0).contributed, 6);
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kRunning) << harness_.Message();
}

// ---- Of a session that outlives its daemon

class OutlivingLedger : public SessionLedger {
 protected:
  OutlivingLedger() : SessionLedger(Outliving()) {}

  bool EndsWithDoneAndTotal(int rank) {
    const std::vector<wire::Frame>& frames = harness_.frames[rank];
    const std::size_t size = frames.size();
    return size >= 2 && std::holds_alternative<wire::StepDone>(frames[size - 2].header) &&
           std::holds_alternative<wire::LedgerTotal>(frames[size - 1].header);
  }
};

TEST_F(OutlivingLedger, MembersHearOfTheTotalAfterTheEndOfTheStep) {
  harness_.Start();
  Reduce();
  for (const int rank : {0, 1}) {
    EXPECT_THAT(harness_.Sent<wire::LedgerTotal>(0), IsEmpty());
    harness_.Receive(rank, Account(0, 2. * (rank + 1), 3));
    SayReady(rank);
  }
  EXPECT_EQ(ledger().settled(), 0);
  const LedgerRow row{
      .contributed = 6, .applied = 6, .contributed_squares = 20, .rounded_squares = 38};
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(EndsWithDoneAndTotal(rank));
    EXPECT_THAT(harness_.Sent<wire::LedgerTotal>(rank),
                ElementsAre(wire::LedgerTotal{.step = 0, .rows = {row, {}, {}}}));
  }
}

// A member may keep no account, and must not keep the others from going on.
TEST_F(OutlivingLedger, AStepEndsWithoutAccountsToo) {
  harness_.Start();
  Reduce();
  for (const int rank : {0, 1}) SayReady(rank);
  EXPECT_THAT(harness_.Sent<wire::StepDone>(0), SizeIs(1));
  EXPECT_EQ(ledger().settled(), -1);
  harness_.Receive(1, Account(0, 4, 3));
  EXPECT_THAT(harness_.Sent<wire::LedgerTotal>(0), IsEmpty());
  harness_.Receive(0, Account(0, 2, 3));
  EXPECT_TRUE(EndsWithDoneAndTotal(0));
  EXPECT_EQ(ledger().total().at(0).contributed, 6);
}

// Rank 1 of three is gone, and the others come with what they know from the daemon before.
class GatheredLedger : public SessionLedger {
 protected:
  GatheredLedger() : SessionLedger(Gathering()) {}

  static SessionOptions Gathering() {
    SessionOptions options = Options(3);
    options.lineage = 5;
    options.coordinator_grace = options.member_grace = absl::Seconds(60);
    options.shrinks_to = 1;
    options.session_key = kKey;
    options.gathers = true;
    options.gone = {1};
    return options;
  }
  void Come(int rank) {
    JoinAsk ask = harness_.Ask(rank);
    ask.report = wire::MemberReport{.session_key = kKey,
                                    .lineage = 5,
                                    .step = 4,
                                    .last = Verdict::kApply,
                                    .keeps_gradients = true,
                                    .roster = wire::Roster{.number = 1, .ranks = {0, 1, 2}},
                                    .concluded = {0, 1, 2}};
    ASSERT_TRUE(harness_.Join(ask).ok());
    ASSERT_TRUE(harness_.Attach(rank, 4).ok());
  }
};

TEST_F(GatheredLedger, TheResidualOfWhoIsGoneIsLost) {
  for (const int rank : {0, 2}) Come(rank);
  ASSERT_EQ(harness_.session.state(), SessionCore::State::kRunning) << harness_.Message();
  EXPECT_THAT(harness_.session.LedgerSilent(), ElementsAre(0, 2));
  // Step 3 left 10 of rank 0, 20 of rank 2, and of rank 1 the rest.
  const LedgerRow total{.contributed = 100,
                        .applied = 93,
                        .residual = 7,
                        .contributed_squares = 5000,
                        .residual_squares = 49,
                        .rounded_squares = 9000};
  for (const int rank : {0, 2}) harness_.EndStep(rank);
  for (const int rank : {0, 2}) {
    const double own = rank == 0 ? 10 : 20;
    const LedgerRow row{.contributed = own,
                        .applied = own,
                        .contributed_squares = own * own,
                        .rounded_squares = 2 * own * own};
    wire::LedgerAccount account{.step = 4, .generation = 7, .before = {row, {}, {}}};
    account.change.resize(3);
    account.earlier = {{.step = 3, .own = {row, {}, {}}, .total = {total, {}, {}}}};
    harness_.Receive(rank, account);
    SayReady(rank);
  }
  const LedgerRow expected{.contributed = 100,
                           .applied = 93,
                           .lost = 7,
                           .contributed_squares = 5000,
                           .lost_squares = 49,
                           .rounded_squares = 9000};
  EXPECT_EQ(ledger().settled(), 4);
  EXPECT_THAT(harness_.Sent<wire::LedgerTotal>(2),
              ElementsAre(wire::LedgerTotal{.step = 4, .rows = {expected, {}, {}}}));
  EXPECT_EQ(ledger().incomplete(), "");
  EXPECT_THAT(harness_.logged, Contains(HasSubstr("residuals with a norm of 7 are lost")));
}

}  // namespace
}  // namespace gradwire::server

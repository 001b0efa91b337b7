// A session that goes on without lost members: whom it waits for, when they are enough, and how
// others come in.
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::string kKey(wire::kSessionKeyBytes, 'k');

SessionOptions Options(bool gathers, std::vector<int> gone = {}) {
  SessionOptions options = SmallOptions(3);
  options.lineage = 5;
  options.coordinator_grace = options.member_grace = absl::Seconds(60);
  options.shrinks_to = 1;
  options.shrink_after = absl::Seconds(10);
  options.session_key = kKey;
  options.gathers = gathers;
  options.gone = std::move(gone);
  if (gathers) options.join_timeout = absl::Seconds(60);
  return options;
}

void Lose(SessionHarness& harness, int rank) {
  harness.Detach(rank);
  harness.Pass(harness.session.options().resume_grace + absl::Milliseconds(200));
}

// All that are here end the step without any bucket.
void EndStepWith(SessionHarness& harness, const std::vector<int>& ranks) {
  const std::int64_t step = harness.session.step();
  for (const int rank : ranks) harness.EndStep(rank);
  for (const int rank : ranks) {
    ASSERT_THAT(harness.Sent<wire::Prepared>(rank), testing::Not(IsEmpty()));
    const wire::Prepared prepared = harness.Sent<wire::Prepared>(rank).back();
    ASSERT_EQ(prepared.step, step);
    harness.Receive(rank, wire::Ready{.step = step,
                                      .generation = harness.session.options().generation,
                                      .verdict = prepared.verdict,
                                      .digest = prepared.digest});
  }
}

TEST(Shrinking, ALostMemberIsNotWaitedFor) {
  SessionHarness harness(Options(false));
  harness.Start();
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(harness.Sent<wire::Welcome>(rank)[0].recovery->roster,
              (wire::Roster{.number = 1, .ranks = {0, 1, 2}}));
  }
  harness.AnnounceAll({0});
  Lose(harness, 1);
  EXPECT_TRUE(harness.session.awaits_successor());
  EXPECT_THAT(harness.session.gone(), ElementsAre(1));
  EXPECT_THAT(harness.logged, Contains(HasSubstr("the others go on without it")));
  EXPECT_THAT(harness.closed, SizeIs(2));
}

// Who leaves may do so: the others need it only when they begin the next step.
TEST(Shrinking, AMemberThatLeavesIsNotWaitedFor) {
  SessionHarness harness(Options(false));
  harness.Start();
  EndStepWith(harness, {0, 1, 2});
  ASSERT_EQ(harness.session.step(), 1);
  for (const int rank : {0, 1}) harness.Receive(rank, wire::Heartbeat{.step = 1});
  ASSERT_TRUE(harness.Leave(2).ok());
  EXPECT_FALSE(harness.session.awaits_successor());
  harness.Announce(0, {0});
  EXPECT_TRUE(harness.session.awaits_successor());
  EXPECT_THAT(harness.session.gone(), ElementsAre(2));
  EXPECT_THAT(harness.Sent<wire::Failure>(0), IsEmpty());
}

class ShrunkGathering : public ::testing::Test {
 protected:
  static wire::MemberReport Report(std::int64_t step) {
    return {.session_key = kKey,
            .lineage = 5,
            .step = step,
            .last = Verdict::kApply,
            .keeps_gradients = true,
            .roster = wire::Roster{.number = 1, .ranks = {0, 1, 2}},
            .concluded = {0, 1, 2}};
  }
  absl::Status Come(int rank, const std::optional<wire::MemberReport>& report) {
    JoinAsk ask = harness_->Ask(rank);
    ask.report = report;
    absl::Status joined = harness_->Join(ask).status();
    return joined.ok() ? harness_->Attach(rank, report ? report->step : 0) : joined;
  }
  void Gather(std::vector<int> gone) { harness_.emplace(Options(true, std::move(gone))); }
  void ExpectWithoutRank1() {
    EXPECT_EQ(harness_->session.state(), SessionCore::State::kRunning);
    EXPECT_EQ(harness_->session.member_state(1), MemberState::kGone);
    EXPECT_THAT(harness_->Waiting(), EndsWith("; goes on without rank 1"));
    for (const int rank : {0, 2}) {
      ASSERT_THAT(harness_->Sent<wire::Welcome>(rank), SizeIs(1));
      EXPECT_EQ(harness_->Sent<wire::Welcome>(rank)[0].recovery->roster,
                (wire::Roster{.number = 2, .ranks = {0, 2}}));
      EXPECT_FALSE(harness_->Sent<wire::Welcome>(rank)[0].group.has_value());
    }
  }
  std::optional<SessionHarness> harness_;
};

TEST_F(ShrunkGathering, BeginsAtOnceWithoutThoseThatAreKnownToBeLost) {
  Gather({1});
  ASSERT_TRUE(Come(2, Report(4)).ok());
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kJoining);
  ASSERT_TRUE(Come(0, Report(4)).ok());
  ExpectWithoutRank1();
  EXPECT_THAT(harness_->logged, Contains(HasSubstr("rank 1 of 3 did not come")));
  // Means are of two, and nobody waits for the third.
  for (const int rank : {0, 2}) harness_->Announce(rank, {0});
  for (const int rank : {0, 2}) harness_->Contribute(rank, 0, 1);
  ASSERT_THAT(harness_->reductions, SizeIs(1));
  EXPECT_EQ(harness_->reductions[0].weight, 2);
  harness_->Reduce();
  EndStepWith(*harness_, {0, 2});
  EXPECT_EQ(harness_->session.step(), 5);
}

TEST_F(ShrunkGathering, WaitsForOthersUntilShrinkAfter) {
  Gather({});
  for (const int rank : {0, 2}) ASSERT_TRUE(Come(rank, Report(4)).ok());
  harness_->Pass(absl::Seconds(9));
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kJoining);
  EXPECT_THAT(harness_->Waiting(), HasSubstr("rank 1"));
  for (int second = 0; second < 2; ++second) {
    for (const int rank : {0, 2}) harness_->Receive(rank, wire::Heartbeat{});
    harness_->Pass(absl::Seconds(1));
  }
  ExpectWithoutRank1();
}

TEST_F(ShrunkGathering, AMinorityWaitsAndEnds) {
  Gather({1, 2});
  ASSERT_TRUE(Come(0, Report(4)).ok());
  for (int second = 0; second < 59; ++second) {
    harness_->Receive(0, wire::Heartbeat{});
    harness_->Pass(absl::Seconds(1));
  }
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kJoining);
  harness_->Receive(0, wire::Heartbeat{});
  harness_->Pass(absl::Seconds(2));
  EXPECT_THAT(harness_->Message(), HasSubstr("for ranks 1, 2 of 3 to join"));
}

// Both newcomers may be those whose model is a later one.
TEST_F(ShrunkGathering, NewcomersMakeNoMajority) {
  Gather({});
  ASSERT_TRUE(Come(0, Report(4)).ok());
  ASSERT_TRUE(Come(1, std::nullopt).ok());
  ASSERT_TRUE(Come(2, std::nullopt).ok());
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kFailed);
  EXPECT_THAT(harness_->Message(), HasSubstr("no majority is here"));
}

// Whatever a report says, it is about ranks of the session, and the member's own is among them.
TEST_F(ShrunkGathering, RefusesRanksThatAreNoneOfTheSessions) {
  Gather({});
  wire::MemberReport report = Report(4);
  for (const std::vector<int>& ranks :
       {std::vector<int>{}, std::vector<int>{1, 2}, std::vector<int>{0, 3}}) {
    report.roster->ranks = ranks;
    const absl::Status refused = Come(0, report);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("report.roster"));
  }
  report = Report(4);
  report.concluded = {0, 4000};
  EXPECT_THAT(std::string(Come(0, report).message()), HasSubstr("report.concluded"));
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kJoining);
}

TEST_F(ShrunkGathering, AProcessIsTakenInWhenAStepHasEnded) {
  Gather({1});
  for (const int rank : {0, 2}) ASSERT_TRUE(Come(rank, Report(4)).ok());
  JoinAsk ask = harness_->Ask(1);
  ask.start_id = 999;
  const absl::Status later = harness_->Join(ask).status();
  EXPECT_EQ(later.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(later.message()), HasSubstr("takes rank 1 in"));
  EXPECT_FALSE(harness_->session.awaits_successor());
  EndStepWith(*harness_, {0, 2});
  EXPECT_THAT(harness_->Sent<wire::StepDone>(0), SizeIs(1));
  EXPECT_TRUE(harness_->session.awaits_successor());
  EXPECT_THAT(harness_->session.gone(), IsEmpty());
}

TEST_F(ShrunkGathering, AMemberThatWasAwayIsSentAway) {
  Gather({1});
  for (const int rank : {0, 2}) ASSERT_TRUE(Come(rank, Report(4)).ok());
  const absl::Status refused = Come(1, Report(4));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("GW322"));
  // So is one that comes to the next gathering before the others have said that they went on.
  Gather({});
  ASSERT_TRUE(Come(1, Report(4)).ok());
  wire::MemberReport later = Report(7);
  later.roster = {.number = 2, .ranks = {0, 2}};
  later.concluded = {0, 2};
  for (const int rank : {0, 2}) ASSERT_TRUE(Come(rank, later).ok());
  ASSERT_THAT(harness_->Sent<wire::Failure>(1), SizeIs(1));
  EXPECT_THAT(harness_->Sent<wire::Failure>(1)[0].message, HasSubstr("went on without rank 1"));
  EXPECT_THAT(harness_->closed, SizeIs(1));
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kRunning);
  EXPECT_EQ(harness_->session.step(), 7);
}

}  // namespace
}  // namespace gradwire::server

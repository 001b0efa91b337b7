// A session that waits for the successors of lost members: what it does when it loses one, and what
// the next one does, which gathers the others.
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

const std::string kKey(wire::kSessionKeyBytes, 'k');

SessionOptions Options(bool gathers, absl::Duration member_grace = absl::Seconds(60)) {
  SessionOptions options = SmallOptions(3);
  options.lineage = 5;
  options.coordinator_grace = absl::Seconds(60);
  options.member_grace = member_grace;
  options.session_key = kKey;
  options.gathers = gathers;
  if (gathers) options.join_timeout = absl::Seconds(60);
  return options;
}

class Loses : public ::testing::Test {
 protected:
  // Its stream ends, and does not come back.
  static void Lose(SessionHarness& harness, int rank) {
    harness.Detach(rank);
    harness.Pass(harness.session.options().resume_grace + absl::Milliseconds(200));
  }
};

TEST_F(Loses, AMemberAndSendsTheOthersAway) {
  SessionHarness harness(Options(false));
  harness.Start();
  harness.AnnounceAll({0});
  Lose(harness, 1);
  EXPECT_EQ(harness.session.state(), SessionCore::State::kClosed);
  EXPECT_TRUE(harness.session.awaits_successor());
  EXPECT_THAT(harness.closed, SizeIs(2));
  EXPECT_THAT(harness.Sent<wire::Failure>(0), IsEmpty());
  ASSERT_THAT(harness.departed, SizeIs(1));
  EXPECT_EQ(harness.departed[0].rank, 1);
  EXPECT_THAT(harness.logged, Contains(HasSubstr("rank 1 was lost in step 0")));
  EXPECT_THAT(harness.logged, Contains(HasSubstr("its place is held for 1m")));
  const absl::Status back = harness.Attach(0, 0);
  EXPECT_THAT(std::string(back.message()), HasSubstr("GW309")) << "it is to report to the next one";
}

TEST_F(Loses, TheSessionWithoutAGrace) {
  SessionHarness harness(Options(false, absl::ZeroDuration()));
  harness.Start();
  Lose(harness, 1);
  EXPECT_FALSE(harness.session.awaits_successor());
  EXPECT_THAT(harness.Message(), HasSubstr("rank 1 was lost"));
}

// In the middle of a training, or at its end: the daemon cannot tell.
TEST_F(Loses, AMemberWhereAnotherHasLeftAndHoldsBothPlaces) {
  SessionHarness harness(Options(false));
  harness.Start();
  ASSERT_TRUE(harness.Leave(2).ok());
  Lose(harness, 1);
  EXPECT_TRUE(harness.session.awaits_successor());
  EXPECT_THAT(harness.session.gone(), UnorderedElementsAre(1, 2));
  EXPECT_THAT(harness.Sent<wire::Failure>(0), IsEmpty());
  EXPECT_THAT(harness.logged, Contains(HasSubstr("rank 1 was lost before step 0")));
}

TEST_F(Loses, AMemberAtTheEndOfTheTrainingAndTheLastOneLeaves) {
  SessionHarness harness(Options(false));
  harness.Start();
  ASSERT_TRUE(harness.Leave(2).ok());
  Lose(harness, 1);
  EXPECT_TRUE(harness.Leave(0).ok());
  EXPECT_THAT(harness.Sent<wire::Failure>(0), IsEmpty());
  EXPECT_THAT(harness.session.gone(), UnorderedElementsAre(0, 1, 2));
}

// Its successors would wait for somebody who has the model.
TEST_F(Loses, TheSessionWhereAllOthersHaveLeft) {
  SessionHarness harness(Options(false));
  harness.Start();
  ASSERT_TRUE(harness.Leave(2).ok());
  ASSERT_TRUE(harness.Leave(0).ok());
  Lose(harness, 1);
  EXPECT_FALSE(harness.session.awaits_successor());
  EXPECT_THAT(harness.Message(), HasSubstr("rank 1 was lost"));
}

// In good order, such as before its machine is taken away: another process may come.
TEST_F(Loses, NothingButAPlaceIfAMemberLeaves) {
  SessionHarness harness(Options(false));
  harness.Start();
  ASSERT_TRUE(harness.Leave(2).ok());
  EXPECT_FALSE(harness.session.awaits_successor()) << "the training may be over";
  harness.Announce(0, {0});
  EXPECT_TRUE(harness.session.awaits_successor());
  EXPECT_THAT(harness.Sent<wire::Failure>(1), IsEmpty());
  EXPECT_THAT(harness.logged, Contains(HasSubstr("rank 2 has left before the others; its place is "
                                                 "held for 1m")));
}

TEST_F(Loses, ItsStepToAMemberThatLeavesInIt) {
  SessionHarness harness(Options(false));
  harness.Start();
  harness.Announce(0, {0});
  ASSERT_TRUE(harness.Leave(2).ok());
  EXPECT_TRUE(harness.session.awaits_successor());
  EXPECT_THAT(harness.Sent<wire::Failure>(0), IsEmpty());
}

TEST_F(Loses, NoPlaceToAProcessThatComesTooEarly) {
  SessionHarness harness(Options(false));
  harness.Start();
  JoinAsk ask = harness.Ask(1);
  ask.start_id = 999;
  const absl::Status refused = harness.Join(ask).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << "its predecessor may be dead";
  EXPECT_THAT(std::string(refused.message()), HasSubstr("rank 1"));
}

// A launcher knows sooner than the daemon that a process is dead.
TEST_F(Loses, AMemberAtOnceIfItsSuccessorIsHere) {
  SessionHarness harness(Options(false));
  harness.Start();
  harness.Detach(1);
  JoinAsk ask = harness.Ask(1);
  ask.start_id = 999;
  EXPECT_EQ(harness.Join(ask).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(harness.session.awaits_successor());
  EXPECT_THAT(harness.logged, Contains(HasSubstr("another process has come for its rank")));
}

class Gathers : public ::testing::Test {
 protected:
  wire::MemberReport Report(std::int64_t step) const {
    return {.session_key = kKey, .lineage = 5, .step = step, .last = Verdict::kApply};
  }
  absl::Status Come(int rank, const std::optional<wire::MemberReport>& report) {
    JoinAsk ask = harness_.Ask(rank);
    ask.report = report;
    absl::Status joined = harness_.Join(ask).status();
    return joined.ok() ? harness_.Attach(rank, report ? report->step : 0) : joined;
  }
  SessionHarness harness_{Options(true)};
};

TEST_F(Gathers, AnnouncesASuccessorWithTheStepThatItDrops) {
  ASSERT_TRUE(Come(1, std::nullopt).ok());
  ASSERT_TRUE(Come(2, Report(4)).ok());
  ASSERT_TRUE(Come(0, Report(4)).ok());
  EXPECT_EQ(harness_.session.step(), 5);
  const wire::MembershipChange change{.newcomers = {1}, .root = 0, .collectives = 1};
  for (const int rank : {0, 2}) {
    EXPECT_THAT(harness_.Sent<wire::StepDone>(rank),
                ElementsAre(wire::StepDone{.step = 4,
                                           .verdict = Verdict::kSkip,
                                           .dropped = true,
                                           .change = change,
                                           .reason = "rank 1 is new, without the model"}));
    EXPECT_FALSE(harness_.Sent<wire::Welcome>(rank)[0].change.has_value());
  }
  EXPECT_THAT(harness_.Sent<wire::StepDone>(1), IsEmpty());
  ASSERT_THAT(harness_.Sent<wire::Welcome>(1), SizeIs(1));
  EXPECT_EQ(harness_.Sent<wire::Welcome>(1)[0].step, 5);
  EXPECT_EQ(harness_.Sent<wire::Welcome>(1)[0].change, change);
  EXPECT_THAT(harness_.logged, Contains(HasSubstr("rank 1 is new")));
}

TEST_F(Gathers, TakesSuccessorsOfALostMemberAndOfOneThatLeft) {
  ASSERT_TRUE(Come(0, Report(4)).ok());
  ASSERT_TRUE(Come(1, std::nullopt).ok());
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kJoining);
  ASSERT_TRUE(Come(2, std::nullopt).ok());
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kRunning);
  const auto done = harness_.Sent<wire::StepDone>(0);
  ASSERT_THAT(done, SizeIs(1));
  ASSERT_TRUE(done[0].change.has_value());
  EXPECT_THAT(done[0].change->newcomers, ElementsAre(1, 2));
  EXPECT_EQ(done[0].change->root, 0);
}

// Its Welcome may be lost with its stream, and it cannot know where it is.
TEST_F(Gathers, WelcomesASuccessorAgainUntilItIsHeard) {
  ASSERT_TRUE(Come(1, std::nullopt).ok());
  ASSERT_TRUE(Come(2, Report(4)).ok());
  ASSERT_TRUE(Come(0, Report(4)).ok());
  harness_.Detach(1);
  ASSERT_TRUE(harness_.Attach(1, 0).ok());
  ASSERT_THAT(harness_.Sent<wire::Welcome>(1), SizeIs(2));
  EXPECT_EQ(harness_.Sent<wire::Welcome>(1)[1].step, 5);
  EXPECT_TRUE(harness_.Sent<wire::Welcome>(1)[1].change.has_value());
  EXPECT_THAT(harness_.Sent<wire::StepDone>(1), IsEmpty());
  harness_.Announce(1, {0});
  harness_.Detach(1);
  ASSERT_TRUE(harness_.Attach(1, 5).ok());
  EXPECT_FALSE(harness_.Sent<wire::Welcome>(1).back().change.has_value());
}

TEST_F(Gathers, AMemberMayMissTwoStepsAndGetsBoth) {
  wire::MemberReport ready = Report(4);
  ready.has_contributed = ready.may_have_results = true;
  ready.ready = {.verdict = Verdict::kApply, .digest = 9};
  ASSERT_TRUE(Come(1, std::nullopt).ok());
  ASSERT_TRUE(Come(2, ready).ok());
  ASSERT_TRUE(Come(0, ready).ok());
  EXPECT_EQ(harness_.session.step(), 6);
  EXPECT_THAT(harness_.Sent<wire::StepDone>(2), SizeIs(2));
  harness_.Detach(2);
  harness_.frames[2].clear();
  ASSERT_TRUE(harness_.Attach(2, 4).ok());
  const auto done = harness_.Sent<wire::StepDone>(2);
  ASSERT_THAT(done, SizeIs(2));
  EXPECT_EQ(done[0].verdict, Verdict::kApply);
  EXPECT_TRUE(done[1].change.has_value());
}

TEST_F(Gathers, ASuccessorMustNameItsRank) {
  ASSERT_TRUE(Come(0, Report(4)).ok());
  JoinAsk ask = harness_.Ask(1);
  ask.rank = -1;
  EXPECT_THAT(std::string(harness_.Join(ask).status().message()), HasSubstr("rank: is -1"));
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kJoining);
}

TEST_F(Gathers, WhereAllAreNewTheSessionBeginsAnew) {
  for (const int rank : {0, 1, 2}) ASSERT_TRUE(Come(rank, std::nullopt).ok());
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kRunning);
  EXPECT_EQ(harness_.session.step(), 0);
  EXPECT_FALSE(harness_.Sent<wire::Welcome>(0)[0].change.has_value());
}

TEST_F(Gathers, EndsWhereNobodyHasTheModel) {
  wire::MemberReport unhealed = Report(4);
  unhealed.newcomer = true;
  ASSERT_TRUE(Come(0, unhealed).ok());
  ASSERT_TRUE(Come(1, std::nullopt).ok());
  ASSERT_TRUE(Come(2, std::nullopt).ok());
  EXPECT_THAT(harness_.Message(), HasSubstr("all members that had the session's model are lost"));
}

}  // namespace
}  // namespace gradwire::server

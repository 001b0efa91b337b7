// A session that outlives its daemon: what its own one does, and what the next one does.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::string kKey(wire::kSessionKeyBytes, 'k');

SessionOptions Options(bool gathers) {
  SessionOptions options = SmallOptions();
  options.lineage = 5;
  options.coordinator_grace = absl::Seconds(60);
  options.session_key = kKey;
  options.gathers = gathers;
  if (gathers) options.join_timeout = absl::Seconds(3);
  return options;
}

wire::MemberReport Report(std::int64_t step) {
  return {.session_key = kKey, .lineage = 5, .step = step, .last = Verdict::kApply};
}
wire::MemberReport Ready(std::int64_t step) {
  wire::MemberReport report = Report(step);
  report.has_contributed = report.may_have_results = true;
  report.ready = {.verdict = Verdict::kApply, .digest = 9};
  return report;
}

class FirstDaemon : public ::testing::Test {
 protected:
  // Until the step's results are out.
  void Reduce() {
    harness_.Start();
    harness_.AnnounceAll({0, 1, 2});
    for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
      for (int rank = 0; rank < 2; ++rank) {
        harness_.Receive(rank, harness_.Chunk(rank, 0, chunk), Floats(chunk == 3 ? 8 : 16, 1));
      }
      harness_.Reduce();
    }
  }
  void SayReady(int rank) {
    const auto prepared = harness_.Sent<wire::Prepared>(rank);
    ASSERT_THAT(prepared, SizeIs(1));
    harness_.Receive(rank, wire::Ready{.step = prepared[0].step,
                                       .generation = 7,
                                       .verdict = prepared[0].verdict,
                                       .digest = prepared[0].digest});
  }
  SessionHarness harness_{Options(false)};
};

TEST_F(FirstDaemon, TellsMembersHowToGoOn) {
  harness_.Start();
  const auto welcome = harness_.Sent<wire::Welcome>(1);
  ASSERT_THAT(welcome, SizeIs(1));
  EXPECT_EQ(welcome[0].recovery,
            (wire::Recovery{.session_key = kKey, .lineage = 5, .grace_milliseconds = 60'000}));
  harness_.Detach(1);
  ASSERT_TRUE(harness_.Attach(1).ok());
  EXPECT_TRUE(harness_.Sent<wire::Welcome>(1).back().recovery.has_value()) << "a resume too";
}

TEST_F(FirstDaemon, ConcludesWhenAllMembersAreReady) {
  Reduce();
  EXPECT_THAT(harness_.Sent<wire::StepDone>(0), IsEmpty());
  SayReady(1);
  EXPECT_THAT(harness_.Sent<wire::StepDone>(0), IsEmpty());
  EXPECT_THAT(harness_.Waiting(), HasSubstr("waits for rank 0"));
  SayReady(0);
  ASSERT_THAT(harness_.Sent<wire::StepDone>(0), SizeIs(1));
  EXPECT_FALSE(harness_.Sent<wire::StepDone>(0)[0].dropped);
  EXPECT_EQ(harness_.session.step(), 1);
}

// The member forgets with the Welcome what it has said elsewhere, so it must know before.
TEST_F(FirstDaemon, AMemberThatMissedTheEndHearsOfItBeforeItsWelcome) {
  Reduce();
  SayReady(0);
  SayReady(1);
  harness_.Detach(1);
  harness_.frames[1].clear();
  ASSERT_TRUE(harness_.Attach(1, 0).ok());
  ASSERT_GE(harness_.frames[1].size(), 2U);
  EXPECT_TRUE(std::holds_alternative<wire::StepDone>(harness_.frames[1][0].header));
  EXPECT_TRUE(std::holds_alternative<wire::Welcome>(harness_.frames[1][1].header));
  EXPECT_THAT(harness_.Sent<wire::StepDone>(1), SizeIs(1));
}

TEST_F(FirstDaemon, HandsTheSessionOverAndTakesNobodyBack) {
  harness_.Start();
  Effects effects;
  harness_.session.HandOver(effects);
  harness_.TakeAll(std::move(effects));
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kClosed);
  EXPECT_THAT(harness_.closed, SizeIs(2));
  EXPECT_THAT(harness_.Sent<wire::Failure>(0), IsEmpty());
  const absl::Status back = harness_.Attach(0, 0);
  EXPECT_EQ(back.code(), absl::StatusCode::kNotFound) << back;
  EXPECT_THAT(std::string(back.message()), HasSubstr("GW309"));
}

TEST(WithoutRecovery, NobodyIsAskedForReadyAndNothingIsHandedOver) {
  SessionHarness harness;
  harness.Start();
  EXPECT_FALSE(harness.Sent<wire::Welcome>(0)[0].recovery.has_value());
  Effects effects;
  harness.session.HandOver(effects);
  EXPECT_THAT(effects, IsEmpty());
  EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning);
}

// Its factors and its generator would be lost.
TEST(WithoutRecovery, ACoordinatorWithStateKeepsTheSession) {
  SessionOptions options = Options(false);
  options.spec.comm_hook = "power_sgd";
  SessionHarness harness(options);
  harness.Start();
  EXPECT_FALSE(harness.Sent<wire::Welcome>(0)[0].recovery.has_value());
}

class NextDaemon : public ::testing::Test {
 protected:
  absl::Status Join(int rank, const std::optional<wire::MemberReport>& report) {
    JoinAsk ask = harness_.Ask(rank);
    ask.report = report;
    return harness_.Join(ask).status();
  }
  void Come(int rank, const wire::MemberReport& report) {
    ASSERT_TRUE(Join(rank, report).ok());
    ASSERT_TRUE(harness_.Attach(rank, report.step).ok());
  }
  // Rank 0 has seen the end of collective 2; rank 1 is in it.
  void ComeInACollective() {
    wire::MemberReport through = Report(4);
    through.collectives = 3;
    wire::MemberReport in = Report(4);
    in.collectives = 2;
    Come(0, through);
    Come(1, in);
  }
  SessionHarness harness_{Options(true)};
};

TEST_F(NextDaemon, GoesOnWithTheStepOnceAllHaveReported) {
  Come(1, Report(4));
  EXPECT_THAT(harness_.frames[1], IsEmpty());
  EXPECT_EQ(harness_.Waiting(), "waits for rank 0 of 2 to join");
  Come(0, Report(4));
  EXPECT_EQ(harness_.session.step(), 4);
  EXPECT_EQ(harness_.Sent<wire::Welcome>(0)[0].step, 4);
  EXPECT_THAT(harness_.Sent<wire::StepDone>(0), IsEmpty());
  EXPECT_THAT(harness_.logged, ::testing::Contains(HasSubstr("goes on with step 4, which nobody")));
}

TEST_F(NextDaemon, SaysHowTheStepEndedBeforeTheWelcome) {
  Come(0, Ready(4));
  Come(1, Report(5));
  ASSERT_THAT(harness_.frames[0], SizeIs(2));
  const auto* done = std::get_if<wire::StepDone>(&harness_.frames[0][0].header);
  ASSERT_NE(done, nullptr);
  EXPECT_EQ(*done, (wire::StepDone{.step = 4, .verdict = Verdict::kApply, .digest = 9}));
  EXPECT_EQ(harness_.Sent<wire::Welcome>(0)[0].step, 5);
  EXPECT_THAT(harness_.logged, ::testing::Contains(HasSubstr("after step 4, which was applied")));
}

TEST_F(NextDaemon, ATooLateReportReplacesTheRanksFirst) {
  Come(0, Report(4));
  ASSERT_TRUE(Join(0, Ready(4)).ok()) << "the same process";
  ASSERT_TRUE(harness_.Attach(0, 4).ok());
  Come(1, Ready(4));
  EXPECT_EQ(harness_.session.step(), 5);
}

TEST_F(NextDaemon, RefusesWhoBelongsToAnotherSession) {
  Come(0, Report(4));
  wire::MemberReport forged = Report(4);
  forged.session_key[0] = 'x';
  EXPECT_EQ(Join(1, forged).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kJoining) << "it harms nobody";
  Come(1, Report(4));
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kRunning);
}

// It takes the place of one that will not come back, so that the others need not wait for it.
TEST_F(NextDaemon, ANewProcessAtAMissingRankEndsTheWait) {
  Come(0, Report(4));
  EXPECT_EQ(Join(1, std::nullopt).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kFailed);
  EXPECT_THAT(harness_.Message(), HasSubstr("rank 1 asked to join with something else"));
}

TEST_F(NextDaemon, EndsTheSessionWhereReportsContradictEachOther) {
  Come(0, Report(4));
  Come(1, Report(9));
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kFailed);
  EXPECT_THAT(harness_.Message(), HasSubstr("rank 0 is in step 4, rank 1 in step 9"));
  EXPECT_THAT(harness_.Sent<wire::Failure>(0), SizeIs(1));
}

TEST_F(NextDaemon, NamesWhoDoesNotComeBack) {
  Come(0, Report(4));
  harness_.Pass(harness_.session.options().join_timeout + absl::Seconds(1));
  EXPECT_THAT(harness_.Message(), HasSubstr("for rank 1 of 2 to join"));
}

TEST_F(NextDaemon, ACollectiveBeginsAnewWithoutThoseWhoAreThrough) {
  ComeInACollective();
  harness_.Receive(1, wire::Enter{.number = 2, .generation = 7});
  EXPECT_THAT(harness_.Sent<wire::Begin>(1), ElementsAre(wire::Begin{.number = 2}));
}

// Whose last act was that barrier.
TEST_F(NextDaemon, WhoIsThroughACollectiveMayLeave) {
  ComeInACollective();
  ASSERT_TRUE(harness_.Leave(0).ok());
  harness_.Receive(1, wire::Enter{.number = 2, .generation = 7});
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kRunning) << harness_.Message();
  EXPECT_THAT(harness_.Sent<wire::Begin>(1), SizeIs(1));
}

TEST(ASessionThatBegins, RefusesReports) {
  SessionHarness harness(Options(false));
  JoinAsk ask = harness.Ask(0);
  ask.report = Report(4);
  const absl::Status refused = harness.Join(ask).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("was begun again by other processes"));
  EXPECT_EQ(harness.session.state(), SessionCore::State::kJoining);
}

}  // namespace
}  // namespace gradwire::server

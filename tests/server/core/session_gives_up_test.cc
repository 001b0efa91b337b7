// Members of a lost daemon that cannot go on with the next one: what each of them is told.
#include <optional>
#include <string>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/gathering_reports.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SessionOptions Options(absl::Duration member_grace) {
  SessionOptions options = SmallOptions();
  options.world_size = 3;
  options.lineage = 5;
  options.coordinator_grace = absl::Seconds(60);
  options.member_grace = member_grace;
  options.session_key = kKey;
  options.gathers = true;
  options.join_timeout = absl::Seconds(6);  // within which nobody is silent for too long
  return options;
}

class GivesUp : public ::testing::Test {
 protected:
  explicit GivesUp(absl::Duration member_grace = absl::ZeroDuration())
      : harness_(Options(member_grace)) {}
  absl::Status Join(int rank, const std::optional<wire::MemberReport>& report) {
    JoinAsk ask = harness_.Ask(rank);
    ask.report = report;
    return harness_.Join(ask).status();
  }
  void Come(int rank, const std::optional<wire::MemberReport>& report) {
    ASSERT_TRUE(Join(rank, report).ok());
    ASSERT_TRUE(harness_.Attach(rank, report ? report->step : 0).ok());
  }
  SessionHarness harness_;
};

class WaitsInVain : public GivesUp {
 protected:
  WaitsInVain() : GivesUp(absl::Seconds(60)) {}
};

// Rank 1 was READY, so it can apply what rank 0 has applied.
TEST_F(GivesUp, WhoIsReadyHearsHowItsStepEndedBeforeTheError) {
  Come(0, At(5));
  Come(1, Ready(4));
  harness_.Pass(absl::Seconds(7));
  ASSERT_THAT(harness_.frames[1], SizeIs(2));
  const auto done = harness_.Sent<wire::StepDone>(1);
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].step, 4);
  EXPECT_EQ(done[0].verdict, Verdict::kApply);
  EXPECT_TRUE(std::holds_alternative<wire::Failure>(harness_.frames[1][1].header));
  EXPECT_THAT(harness_.Message(), HasSubstr("waited 6s for rank 2 of 3 to join"));
}

TEST_F(GivesUp, NobodyHearsWhatNobodyKnows) {
  Come(0, Ready(4));
  Come(1, Ready(4));
  harness_.Pass(absl::Seconds(7));
  EXPECT_THAT(harness_.Sent<wire::Failure>(0), SizeIs(1));
  EXPECT_THAT(harness_.Sent<wire::StepDone>(0), IsEmpty());
}

TEST_F(WaitsInVain, NewcomersHearOfNoStep) {
  Come(0, At(5));
  Come(1, std::nullopt);
  harness_.Pass(absl::Seconds(7));
  EXPECT_THAT(harness_.Sent<wire::Failure>(1), SizeIs(1));
  EXPECT_THAT(harness_.Sent<wire::StepDone>(1), IsEmpty());
}

// Who came last has done nothing wrong.
TEST_F(GivesUp, BlamesNobodyForReportsOfOthers) {
  Come(0, At(4));
  Come(1, At(70));
  Come(2, At(4));
  const auto failure = harness_.Sent<wire::Failure>(2);
  ASSERT_THAT(failure, SizeIs(1));
  EXPECT_EQ(failure[0].blamed_rank, -1);
  EXPECT_THAT(failure[0].message, HasSubstr("rank 0 is in step 4, rank 1 in step 70"));
}

// The right one may still come; and if it does not, all hear of the wrong one.
TEST_F(WaitsInVain, AWrongProcessHarmsNobodyAndIsNamedInTheEnd) {
  Come(0, At(4));
  JoinAsk other = harness_.Ask(1);
  other.manifest = Manifest();
  const absl::Status refused = harness_.Join(other).status();
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kJoining);
  harness_.Pass(absl::Seconds(7));
  EXPECT_THAT(harness_.Message(), AllOf(HasSubstr("for ranks 1, 2 of 3 to join"),
                                        HasSubstr("a process that came for rank 1 was refused: ")));
}

// A launcher that starts a broken process again and again keeps nobody waiting for ever.
TEST_F(WaitsInVain, NewcomersThatComeAndGoDoNotProlongTheWait) {
  Come(0, At(4));
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(harness_.session.state(), SessionCore::State::kJoining) << i;
    Come(1, std::nullopt);
    harness_.Detach(1);
    harness_.Pass(absl::Seconds(2));
  }
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kFailed);
  EXPECT_THAT(harness_.Message(), HasSubstr("waited 6s for"));
}

TEST_F(WaitsInVain, AMemberThatIsLostMeanwhileHasTheWholeTimeForItsSuccessor) {
  Come(0, At(4));
  Come(1, At(4));
  harness_.Pass(absl::Seconds(5));
  harness_.Detach(1);
  harness_.Pass(absl::Seconds(5));
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kJoining);
  harness_.Pass(absl::Seconds(3));
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kFailed);
}

TEST_F(WaitsInVain, WithoutTheModelItNamesTheNewcomers) {
  Report unhealed = At(4);
  unhealed.newcomer = true;
  Come(0, unhealed);
  Come(1, std::nullopt);
  Come(2, std::nullopt);
  EXPECT_THAT(harness_.Message(), HasSubstr("model are lost; ranks 0, 1, 2 are new"));
}

}  // namespace
}  // namespace gradwire::server

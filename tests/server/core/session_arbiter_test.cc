// A session whose rosters are claimed at an arbiter, so that a minority goes on.
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

const std::string kKey(wire::kSessionKeyBytes, 'k');
constexpr std::uint64_t kArbiter = 0xab;

class Arbitrated : public ::testing::Test {
 protected:
  static SessionOptions Options(bool gathers) {
    SessionOptions options = SmallOptions(2);
    options.lineage = 5;
    options.coordinator_grace = options.member_grace = absl::Seconds(60);
    options.shrinks_to = 1;
    options.may_be_minority = true;
    options.arbiter = kArbiter;
    options.session_key = kKey;
    options.gathers = gathers;
    if (gathers) options.join_timeout = absl::Seconds(60);
    return options;
  }
  static wire::MemberReport Report(std::int64_t step) {
    return {.session_key = kKey,
            .lineage = 5,
            .step = step,
            .last = Verdict::kApply,
            .keeps_gradients = true,
            .roster = wire::Roster{.number = 1, .ranks = {0, 1}},
            .concluded = {0, 1},
            .arbiter = kArbiter};
  }
  static std::uint64_t Process(int rank) {
    return ProcessOf(kKey, 100 + static_cast<std::uint64_t>(rank));
  }
  // Of other daemons.
  static ClaimAnswer Others(std::uint64_t number, std::vector<int> ranks) {
    RosterClaim claim{.number = number, .ranks = std::move(ranks)};
    for (const int rank : claim.ranks) claim.processes.push_back(Process(rank));
    return {.highest = std::move(claim)};
  }

  void Gather(std::vector<int> gone) {
    SessionOptions options = Options(true);
    options.gone = std::move(gone);
    harness_.emplace(std::move(options));
  }
  absl::Status Come(int rank, const std::optional<wire::MemberReport>& report) {
    JoinAsk ask = harness_->Ask(rank);
    ask.report = report;
    absl::Status joined = harness_->Join(ask).status();
    return joined.ok() ? harness_->Attach(rank, report ? report->step : 0) : joined;
  }
  void Pass(int seconds, const std::vector<int>& ranks) {
    for (int i = 0; i < 2 * seconds; ++i) {
      for (const int rank : ranks) harness_->Receive(rank, wire::Heartbeat{});
      harness_->Pass(absl::Milliseconds(500));
    }
  }
  // What is asked for is the highest claim.
  void ExpectAsks() {
    ASSERT_THAT(harness_->claims, SizeIs(1));
    EXPECT_EQ(harness_->claims[0].lineage, 5U);
    EXPECT_EQ(harness_->claims[0].claim, RosterClaim());
  }
  void ExpectClaims(std::uint64_t number, const std::vector<int>& ranks) {
    ASSERT_THAT(harness_->claims, SizeIs(1));
    const RosterClaim& claim = harness_->claims[0].claim;
    EXPECT_EQ(claim.number, number);
    EXPECT_EQ(claim.ranks, ranks);
    ASSERT_EQ(claim.processes.size(), ranks.size());
    for (std::size_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(claim.processes[i], Process(ranks[i]));
    EXPECT_EQ(harness_->session.state(), SessionCore::State::kJoining);
  }
  void Win() {
    ASSERT_THAT(harness_->claims, SizeIs(1));
    harness_->AnswerClaim(ClaimAnswer{.highest = harness_->claims[0].claim, .is_own = true});
  }
  void ExpectRuns(std::uint64_t number, const std::vector<int>& ranks) {
    ASSERT_EQ(harness_->session.state(), SessionCore::State::kRunning);
    for (const int rank : ranks) {
      ASSERT_THAT(harness_->Sent<wire::Welcome>(rank), SizeIs(1));
      const auto recovery = harness_->Sent<wire::Welcome>(rank)[0].recovery;
      EXPECT_EQ(recovery->roster, (wire::Roster{.number = number, .ranks = ranks}));
      EXPECT_EQ(recovery->arbiter, kArbiter);
    }
  }

  std::optional<SessionHarness> harness_;
};

TEST_F(Arbitrated, TheFirstRosterIsNotClaimed) {
  harness_.emplace(Options(false));
  harness_->Start();
  EXPECT_THAT(harness_->claims, IsEmpty());
  ExpectRuns(1, {0, 1});
}

TEST_F(Arbitrated, OneOfTwoGoesOnWhenItsRosterIsClaimed) {
  Gather({1});
  ASSERT_TRUE(Come(0, Report(4)).ok());
  ExpectAsks();
  Pass(3, {0});
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kJoining);
  EXPECT_THAT(harness_->Waiting(), HasSubstr("waits for the arbiter"));
  harness_->AnswerClaim(ClaimAnswer());
  Pass(1, {0});
  ExpectClaims(2, {0});
  Win();
  ExpectRuns(2, {0});
  EXPECT_EQ(harness_->session.step(), 4);
}

// A majority, too: the rosters of one lineage are one log.
TEST_F(Arbitrated, AllClaim) {
  Gather({});
  for (const int rank : {0, 1}) ASSERT_TRUE(Come(rank, Report(4)).ok());
  ExpectAsks();
  harness_->AnswerClaim(ClaimAnswer());
  ExpectAsks();  // rank 1 has come since the first was asked for
  harness_->AnswerClaim(ClaimAnswer());
  ExpectClaims(2, {0, 1});
  Win();
  ExpectRuns(2, {0, 1});
}

TEST_F(Arbitrated, WhoHasLostTheRaceWaitsAndEnds) {
  Gather({1});
  ASSERT_TRUE(Come(0, Report(4)).ok());
  harness_->AnswerClaim(ClaimAnswer());
  Pass(1, {0});
  ExpectClaims(2, {0});
  harness_->AnswerClaim(Others(2, {1}));
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kJoining);
  EXPECT_THAT(harness_->Waiting(),
              HasSubstr("others have claimed roster 2, of ranks 1; waits for one of them"));
  EXPECT_THAT(harness_->logged, Contains(HasSubstr("roster 2, of ranks 1, is claimed already")));
  for (int second = 0; second < 55; ++second) {  // in vain, again and again
    Pass(1, {0});
    if (harness_->claims.empty()) continue;
    ExpectAsks();
    harness_->AnswerClaim(Others(2, {1}));
  }
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kJoining);
  Pass(6, {0});
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kFailed);
  EXPECT_THAT(harness_->Message(), HasSubstr("others have claimed roster 2, of ranks 1"));
}

// The roster's daemon was lost before anybody in it had heard of it, or one has.
TEST_F(Arbitrated, OneOfTheLastRosterGoesOn) {
  for (const bool is_heard : {false, true}) {
    Gather({1});
    wire::MemberReport report = Report(4);
    if (is_heard) report.roster->number = 7;
    ASSERT_TRUE(Come(0, report).ok());
    harness_->AnswerClaim(is_heard ? Others(7, {1}) : Others(7, {0, 1}));
    Pass(1, {0});
    ExpectClaims(8, {0});
    Win();
    ExpectRuns(8, {0});
  }
}

TEST_F(Arbitrated, WhoComesFromTheLastRosterLetsTheOthersGoOn) {
  Gather({});
  ASSERT_TRUE(Come(0, Report(4)).ok());
  harness_->AnswerClaim(Others(2, {1}));
  Pass(11, {0});
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kJoining);
  harness_->claims.clear();
  harness_->claims.push_back({});
  harness_->AnswerClaim(Others(2, {1}));
  ASSERT_TRUE(Come(1, Report(4)).ok());
  ExpectAsks();
  harness_->AnswerClaim(Others(2, {1}));
  ExpectClaims(3, {0, 1});
  Win();
  ExpectRuns(3, {0, 1});
}

// The rank had another process in that roster, which may have concluded steps there.
TEST_F(Arbitrated, AnotherProcessOfTheRankIsNotInTheRoster) {
  Gather({1});
  ASSERT_TRUE(Come(0, Report(4)).ok());
  ClaimAnswer answer = Others(2, {0});
  answer.highest.processes = {ProcessOf(kKey, 4711)};
  harness_->AnswerClaim(answer);
  Pass(1, {0});
  EXPECT_THAT(harness_->Waiting(), HasSubstr("others have claimed roster 2"));
}

// Somebody may have been told that before the daemon was lost.
TEST_F(Arbitrated, WhatWasClaimedWithARosterHolds) {
  Gather({1});
  ASSERT_TRUE(Come(0, Report(4)).ok());
  ClaimAnswer answer = Others(2, {0, 1});
  answer.highest.ended = {{.step = 4, .verdict = Verdict::kSkip, .dropped = true, .reason = "x"}};
  harness_->AnswerClaim(answer);
  Pass(1, {0});
  ExpectClaims(3, {0});
  EXPECT_EQ(harness_->claims[0].claim.ended, answer.highest.ended);
  Win();
  ExpectRuns(3, {0});
  EXPECT_EQ(harness_->session.step(), 5);
  ASSERT_THAT(harness_->Sent<wire::StepDone>(0), SizeIs(1));
  EXPECT_EQ(harness_->Sent<wire::StepDone>(0)[0].step, 4);
}

TEST_F(Arbitrated, AClaimForOtherMembersIsVoid) {
  Gather({1});
  ASSERT_TRUE(Come(0, Report(4)).ok());
  harness_->AnswerClaim(ClaimAnswer());
  Pass(1, {0});
  ExpectClaims(2, {0});
  ASSERT_TRUE(Come(1, Report(4)).ok());
  Win();
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kJoining);
  ExpectAsks();
  harness_->AnswerClaim(Others(2, {0}));
  ExpectClaims(3, {0, 1});
  Win();
  ExpectRuns(3, {0, 1});
}

// It may take long.
TEST_F(Arbitrated, AnAnswerToASessionThatHasEndedIsNone) {
  Gather({1});
  ASSERT_TRUE(Come(0, Report(4)).ok());
  Pass(62, {0});
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kFailed);
  EXPECT_THAT(harness_->Message(), HasSubstr("waits for the arbiter"));
  harness_->AnswerClaim(ClaimAnswer());
  EXPECT_THAT(harness_->claims, IsEmpty());
}

TEST_F(Arbitrated, AnErrorIsLoggedOnceAndTriedAgainEverySecond) {
  Gather({1});
  ASSERT_TRUE(Come(0, Report(4)).ok());
  const absl::Status error = absl::UnavailableError("stale file handle");
  harness_->AnswerClaim(error);
  EXPECT_THAT(harness_->Waiting(), HasSubstr("the arbiter does not answer: stale file handle"));
  EXPECT_THAT(harness_->claims, IsEmpty());
  Pass(2, {0});
  ExpectAsks();
  harness_->AnswerClaim(error);
  Pass(2, {0});
  ExpectAsks();
  int lines = 0;
  for (const std::string& line : harness_->logged) {
    lines += line.find("stale") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(lines, 1);
  harness_->AnswerClaim(ClaimAnswer());
  Pass(1, {0});
  ExpectClaims(2, {0});
  Win();
  ExpectRuns(2, {0});
}

TEST_F(Arbitrated, AReportWithAnotherArbiterIsRefused) {
  Gather({});
  for (const std::uint64_t other : {std::uint64_t{0}, std::uint64_t{0xcd}}) {
    wire::MemberReport report = Report(4);
    report.arbiter = other;
    const absl::Status refused = Come(0, report);
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--arbiter"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("GW309"));
  }
}

// It was at another daemon meanwhile, which may have claimed the next roster with it.
TEST_F(Arbitrated, AMemberThatComesBackLetsAllGatherAgain) {
  Gather({1});
  ASSERT_TRUE(Come(0, Report(4)).ok());
  harness_->AnswerClaim(ClaimAnswer());
  Pass(1, {0});
  Win();
  ExpectRuns(2, {0});
  EXPECT_EQ(Come(0, Report(4)).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(harness_->session.awaits_successor());
}

TEST_F(Arbitrated, ThoseWhoBeginAnewTakeTheNextNumber) {
  Gather({0, 1});
  for (const int rank : {0, 1}) ASSERT_TRUE(Come(rank, std::nullopt).ok());
  harness_->AnswerClaim(Others(3, {0, 1}));
  harness_->AnswerClaim(Others(3, {0, 1}));
  ExpectClaims(4, {0, 1});
  Win();
  ExpectRuns(4, {0, 1});
  EXPECT_EQ(harness_->session.step(), 0);
}

TEST_F(Arbitrated, WithoutMinMembersAMajorityIsNeeded) {
  SessionOptions options = Options(true);
  options.may_be_minority = false;
  options.gone = {1};
  harness_.emplace(std::move(options));
  ASSERT_TRUE(Come(0, Report(4)).ok());
  harness_->AnswerClaim(ClaimAnswer());
  Pass(3, {0});
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kJoining);
  EXPECT_THAT(harness_->claims, IsEmpty());
}

TEST_F(Arbitrated, TheEndOfASessionEndsItsRosters) {
  harness_.emplace(Options(false));
  harness_->Start();
  for (const int rank : {0, 1}) ASSERT_TRUE(harness_->Leave(rank).ok());
  EXPECT_EQ(harness_->session.state(), SessionCore::State::kClosed);
  EXPECT_THAT(harness_->forgotten, ElementsAre(5U));
}

}  // namespace
}  // namespace gradwire::server

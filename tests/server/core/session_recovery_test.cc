// A session that outlives its daemon: what its own one does, and what the next one does.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "proto/wire/owned_payload.h"
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

class NextDaemon : public ::testing::Test {
 protected:
  explicit NextDaemon(const SessionOptions& options = Options(true)) : harness_(options) {}
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
  SessionHarness harness_;
};

TEST_F(NextDaemon, GoesOnWithTheStepOnceAllHaveReported) {
  Come(1, Report(4));
  EXPECT_THAT(harness_.frames[1], IsEmpty());
  EXPECT_EQ(harness_.Waiting(), "gathers its members: waits for rank 0 of 2 to come back");
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

TEST_F(NextDaemon, ANewProcessAtAMissingRankIsRefusedAndHarmsNobody) {
  Come(0, Report(4));
  EXPECT_EQ(Join(1, std::nullopt).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kJoining);
  Come(1, Report(4));
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kRunning);
}

TEST_F(NextDaemon, EndsTheSessionWhereReportsContradictEachOther) {
  Come(0, Report(4));
  Come(1, Report(70));
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kFailed);
  EXPECT_THAT(harness_.Message(), HasSubstr("rank 0 is in step 4, rank 1 in step 70"));
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

// ---- The hook's state

SessionOptions PowerSgdOptions(bool gathers) {
  SessionOptions options = Options(gathers);
  options.spec = *HookSpec::Parse("power_sgd,start_powerSGD_iter=0");
  return options;
}

// What a member holds before the first draw.
wire::PayloadRef Copy(std::int64_t iteration) {
  const std::string file =
      WriteSafetensors({.metadata = {{"iteration", absl::StrCat(iteration)}}, .tensors = {}});
  const std::span<const std::byte> bytes = std::as_bytes(std::span(file));
  return wire::OwnedPayload::Make({bytes.begin(), bytes.end()});
}
wire::StateCopy HeaderOf(const wire::PayloadRef& copy, bool donor) {
  return {.generation = 7, .digest = wire::Digest(copy.get()), .bytes = donor ? copy->bytes() : 0};
}

TEST(ASessionWithAState, OutlivesItsDaemonToo) {
  SessionHarness harness(PowerSgdOptions(false));
  harness.Start();
  EXPECT_TRUE(harness.Sent<wire::Welcome>(0)[0].recovery.has_value());
}

class NextDaemonWithState : public NextDaemon {
 protected:
  NextDaemonWithState() : NextDaemon(PowerSgdOptions(true)) {}
};

TEST_F(NextDaemonWithState, TakesItFromTheDonorWhenAllHoldTheSame) {
  Come(1, Report(4));
  EXPECT_THAT(harness_.frames[1], IsEmpty()) << "somebody may still have seen the step end";
  Come(0, Report(4));
  EXPECT_THAT(harness_.Sent<wire::StateRequest>(0), ElementsAre(wire::StateRequest{.donor = true}));
  EXPECT_THAT(harness_.Sent<wire::StateRequest>(1), ElementsAre(wire::StateRequest{}));
  EXPECT_EQ(harness_.Waiting(), "waits for what ranks 0, 1 hold of the hook's state");
  const wire::PayloadRef copy = Copy(30);
  harness_.Receive(1, HeaderOf(copy, false));
  EXPECT_EQ(harness_.Waiting(), "waits for what rank 0 holds of the hook's state");
  harness_.answers_at_once = false;
  harness_.Receive(0, HeaderOf(copy, true), copy);
  EXPECT_THAT(harness_.Waiting(), HasSubstr("reads the hook's state"));
  EXPECT_THAT(harness_.Sent<wire::Welcome>(0), IsEmpty());
  // One that loses its stream now has nothing more to say.
  harness_.Detach(1);
  ASSERT_TRUE(harness_.Attach(1, 4).ok());
  EXPECT_THAT(harness_.Sent<wire::StateRequest>(1), SizeIs(1));
  harness_.Restore();
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kRunning) << harness_.Message();
  EXPECT_THAT(harness_.Sent<wire::Welcome>(0), SizeIs(1));
  EXPECT_EQ(harness_.session.hook_state().iteration(), 30);
  EXPECT_TRUE(harness_.Sent<wire::StateReset>(1).empty()) << "it has the state";
}

TEST_F(NextDaemonWithState, SaysFirstHowTheStepEnded) {
  Come(0, Ready(4));
  Come(1, Report(5));
  ASSERT_THAT(harness_.frames[0], SizeIs(2));
  EXPECT_TRUE(std::holds_alternative<wire::StepDone>(harness_.frames[0][0].header));
  EXPECT_TRUE(std::holds_alternative<wire::StateRequest>(harness_.frames[0][1].header));
  EXPECT_THAT(harness_.frames[1], SizeIs(1)) << "it has seen the end";
}

TEST_F(NextDaemonWithState, AsksAgainOnANewStream) {
  Come(0, Report(4));
  Come(1, Report(4));
  const wire::PayloadRef copy = Copy(3);
  harness_.Receive(0, HeaderOf(copy, true), copy);
  harness_.Detach(0);
  ASSERT_TRUE(harness_.Attach(0, 4).ok());
  EXPECT_THAT(harness_.Sent<wire::StateRequest>(0), SizeIs(2));
  EXPECT_THAT(harness_.Sent<wire::StateRequest>(1), SizeIs(1));
  harness_.Receive(1, HeaderOf(copy, false));
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kJoining);
  harness_.Receive(0, HeaderOf(copy, true), copy);
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kRunning) << harness_.Message();
}

TEST_F(NextDaemonWithState, EndsTheSessionWhereCopiesDiffer) {
  Come(0, Report(4));
  Come(1, Report(4));
  const wire::PayloadRef copy = Copy(3);
  harness_.Receive(0, HeaderOf(copy, true), copy);
  const wire::PayloadRef other = Copy(4);
  harness_.Receive(1, HeaderOf(other, false));
  EXPECT_EQ(harness_.Sent<wire::StateRequest>(1).back(), wire::StateRequest{.donor = true});
  harness_.Receive(1, HeaderOf(other, true), other);
  EXPECT_THAT(harness_.Message(),
              HasSubstr("ranks 0 and 1 hold different copies of \"iteration\""));
  EXPECT_THAT(harness_.Sent<wire::Failure>(0), SizeIs(1));
}

TEST_F(NextDaemonWithState, EndsTheSessionWhereNobodyKnowsTheState) {
  Come(0, Report(4));
  Come(1, Report(4));
  harness_.Receive(1, wire::StateCopy{.generation = 7, .unknown = true});
  EXPECT_THAT(harness_.Message(), HasSubstr("was replaced by one from a file"));
}

TEST_F(NextDaemonWithState, EndsTheSessionWhereTheCopyIsNone) {
  Come(0, Report(4));
  Come(1, Report(4));
  const wire::PayloadRef none = wire::OwnedPayload::Make(std::vector<std::byte>(40));
  harness_.Receive(1, HeaderOf(none, false));
  harness_.Receive(0, HeaderOf(none, true), none);
  EXPECT_THAT(harness_.Message(),
              HasSubstr("what its members hold of the hook's state is not one"));
}

TEST_F(NextDaemonWithState, NamesWhoDoesNotAnswer) {
  Come(0, Report(4));
  Come(1, Report(4));
  const wire::PayloadRef copy = Copy(3);
  harness_.Receive(0, HeaderOf(copy, true), copy);
  harness_.Tick(absl::ZeroDuration());
  for (int second = 0; second < 20 && harness_.Message().empty(); ++second) {
    for (int rank = 0; rank < 2; ++rank) harness_.Receive(rank, wire::Heartbeat{});
    harness_.Pass(absl::Seconds(1));
  }
  EXPECT_THAT(harness_.Message(), HasSubstr("waits for what rank 1 holds of the hook's state"));
}

// Each is the fault of one member, and named.
TEST(ACopyOfTheState, ThatIsNotAllowedIsAViolation) {
  const wire::PayloadRef copy = Copy(3);
  const auto refusal = [&](int rank, const wire::StateCopy& header, const wire::PayloadRef& bytes) {
    SessionHarness harness(PowerSgdOptions(true));
    for (int one = 0; one < 2; ++one) {
      JoinAsk ask = harness.Ask(one);
      ask.report = Report(4);
      EXPECT_TRUE(harness.Join(ask).ok());
      EXPECT_TRUE(harness.Attach(one, 4).ok());
    }
    harness.Receive(rank, header, bytes);
    return harness.Message();
  };
  wire::StateCopy header = HeaderOf(copy, true);
  EXPECT_EQ(refusal(0, header, copy), "");
  EXPECT_THAT(refusal(1, header, copy), HasSubstr("rank 1: sent bytes of the hook's state"));
  header.digest ^= 1;
  EXPECT_THAT(refusal(0, header, copy),
              HasSubstr("rank 0: its copy of the hook's state has digest"));
  header = HeaderOf(copy, true);
  header.offset = 1;
  EXPECT_THAT(refusal(0, header, copy), HasSubstr("rank 0: its copy of the state has bytes 1 to"));
  header = HeaderOf(copy, false);
  EXPECT_THAT(refusal(0, header, nullptr), HasSubstr("state_copy.bytes: 0; allowed: 1 to"));
  header.bytes = std::uint64_t{1} << 40;
  EXPECT_THAT(refusal(0, header, nullptr), HasSubstr("state_copy.bytes: 1099511627776"));
  header = HeaderOf(copy, false);
  header.generation = 6;
  EXPECT_THAT(refusal(1, header, nullptr), HasSubstr("of generation 6"));
}

TEST_F(NextDaemon, WithoutAStateNobodyIsAskedForIt) {
  Come(0, Report(4));
  harness_.Receive(0, wire::StateCopy{.generation = 7});
  EXPECT_THAT(harness_.Message(), HasSubstr("sent a frame before its Welcome"));
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

// Members that leave a session that outlives its daemon: who knows how the last step ended stays
// until the others know it too.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kMembers = 3;

SessionOptions Options(absl::Duration coordinator_grace = absl::Seconds(60)) {
  SessionOptions options = SmallOptions(kMembers);
  options.lineage = 5;
  options.coordinator_grace = coordinator_grace;
  options.session_key = std::string(wire::kSessionKeyBytes, 'k');
  return options;
}

SessionOptions WaitOptions() {
  SessionOptions options = Options();
  options.member_grace = absl::Seconds(60);
  return options;
}

// All members have said that they hold the results of step 0, so it is concluded.
class AfterAStep : public ::testing::Test {
 protected:
  explicit AfterAStep(const SessionOptions& options = Options()) : harness_(options) {
    harness_.Start();
    harness_.AnnounceAll({0, 1, 2});
    for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
      for (int rank = 0; rank < kMembers; ++rank) {
        harness_.Receive(rank, harness_.Chunk(rank, 0, chunk), Floats(chunk == 3 ? 8 : 16, 1));
      }
      harness_.Reduce();
    }
    for (int rank = 0; rank < kMembers; ++rank) {
      const auto prepared = harness_.Sent<wire::Prepared>(rank);
      if (prepared.empty()) continue;
      harness_.Receive(rank, wire::Ready{.generation = 7, .digest = prepared[0].digest});
    }
    EXPECT_EQ(harness_.session.step(), 1);
  }

  void SayStep(int rank, std::int64_t step) {
    harness_.Receive(rank, wire::Heartbeat{.step = step});
  }
  MemberState StateOf(int rank) const { return harness_.session.member_state(rank); }
  std::vector<int> Closed() const {
    std::vector<int> ranks;
    for (const CloseEffect& close : harness_.closed) ranks.push_back(close.rank);
    return ranks;
  }

  SessionHarness harness_;
};

TEST_F(AfterAStep, ALeaverStaysUntilAllHaveHeardTheEnd) {
  const absl::Status answer = harness_.Leave(2);
  EXPECT_TRUE(absl::IsUnavailable(answer)) << answer;
  EXPECT_THAT(answer.message(), HasSubstr("ranks 0, 1 have not heard yet how step 0 ended"));
  EXPECT_THAT(harness_.Sent<wire::Heartbeat>(0), ElementsAre(wire::Heartbeat{.asks = true}));
  EXPECT_THAT(harness_.Sent<wire::Heartbeat>(2), IsEmpty()) << "it knows";

  SayStep(0, 1);
  SayStep(1, 0);
  EXPECT_EQ(StateOf(2), MemberState::kConnected) << "rank 1 has only heard of the step before";
  EXPECT_THAT(harness_.Leave(2).message(), HasSubstr("rank 1 has not heard yet"));
  SayStep(1, 1);
  EXPECT_EQ(StateOf(2), MemberState::kLeft);
  EXPECT_THAT(Closed(), ElementsAre(2)) << "so that it hears of it at once";
  EXPECT_TRUE(harness_.Leave(2).ok()) << "again";
}

// An upgrade at the end of the training: rank 1 may have to hear from the next daemon how its last
// step ended, and that one from rank 2.
TEST_F(AfterAStep, ADaemonThatHandsItsSessionsOverLetsNobodyGo) {
  EXPECT_TRUE(absl::IsUnavailable(harness_.Leave(2)));
  Effects effects;
  harness_.session.HandOver(effects);
  harness_.TakeAll(std::move(effects));
  EXPECT_EQ(harness_.Leave(2).code(), absl::StatusCode::kNotFound);
  EXPECT_NE(StateOf(2), MemberState::kLeft);
}

TEST_F(AfterAStep, TheLastOneMayLeaveADaemonThatHandsItsSessionsOver) {
  for (const int rank : {0, 1, 2}) SayStep(rank, 1);
  for (const int rank : {0, 1}) EXPECT_TRUE(harness_.Leave(rank).ok());
  Effects effects;
  harness_.session.HandOver(effects);
  harness_.TakeAll(std::move(effects));
  EXPECT_TRUE(harness_.Leave(2).ok());
}

TEST_F(AfterAStep, WhoLeavesItselfHasHeard) {
  EXPECT_TRUE(absl::IsUnavailable(harness_.Leave(0)));
  EXPECT_TRUE(absl::IsUnavailable(harness_.Leave(1)));
  EXPECT_TRUE(harness_.Leave(2).ok());
  EXPECT_THAT(Closed(), ElementsAre(0, 1, 2));
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kClosed);
}

TEST_F(AfterAStep, ANewStreamSaysItToo) {
  SayStep(0, 1);
  harness_.Detach(1);
  EXPECT_TRUE(absl::IsUnavailable(harness_.Leave(2)));
  EXPECT_THAT(harness_.Sent<wire::Heartbeat>(1), IsEmpty()) << "it has no stream";
  ASSERT_TRUE(harness_.Attach(1, 0).ok());
  EXPECT_TRUE(absl::IsUnavailable(harness_.Leave(2))) << "its end may be lost again";
  harness_.Detach(1);
  ASSERT_TRUE(harness_.Attach(1, 1).ok());
  EXPECT_TRUE(harness_.Leave(2).ok());
}

TEST_F(AfterAStep, WhoIsLostHoldsNobodyUp) {
  SayStep(0, 1);
  harness_.Detach(1);
  EXPECT_TRUE(absl::IsUnavailable(harness_.Leave(2)));
  harness_.Pass(absl::Seconds(2));
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kFailed);
  EXPECT_THAT(harness_.Message(), HasSubstr("rank 1 was lost"));
  EXPECT_THAT(harness_.Sent<wire::Failure>(0), SizeIs(1));
  EXPECT_THAT(harness_.Sent<wire::Failure>(2), IsEmpty()) << "it has left";
  EXPECT_TRUE(harness_.Leave(2).ok());
}

// An earlier version's client, or one that is stopped.
TEST_F(AfterAStep, WhoDoesNotAnswerHoldsNobodyUpForLong) {
  EXPECT_TRUE(absl::IsUnavailable(harness_.Leave(2)));
  harness_.Pass(absl::Seconds(4));
  EXPECT_TRUE(absl::IsUnavailable(harness_.Leave(2)));
  harness_.Pass(absl::Seconds(1));
  EXPECT_EQ(StateOf(2), MemberState::kLeft);
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kRunning);
}

TEST_F(AfterAStep, ALeaverWhoseStreamEndsHasLeft) {
  EXPECT_TRUE(absl::IsUnavailable(harness_.Leave(2)));
  harness_.Detach(2);
  harness_.Pass(absl::Seconds(1));
  EXPECT_EQ(StateOf(2), MemberState::kLeft);
  EXPECT_EQ(harness_.session.state(), SessionCore::State::kRunning) << harness_.Message();
}

TEST_F(AfterAStep, TheNextStepCannotEndWithoutALeaver) {
  EXPECT_TRUE(absl::IsUnavailable(harness_.Leave(2)));
  harness_.Announce(0, {0, 1, 2});
  SayStep(1, 1);
  SayStep(0, 1);
  EXPECT_EQ(StateOf(2), MemberState::kConnected);
  EXPECT_TRUE(harness_.Leave(2).ok());
  EXPECT_THAT(harness_.Message(), HasSubstr("rank 2 left"));
}

class AfterAStepThatWaits : public AfterAStep {
 protected:
  AfterAStepThatWaits() : AfterAStep(WaitOptions()) {}
};

TEST_F(AfterAStepThatWaits, OthersGatherWithoutALeaver) {
  EXPECT_TRUE(absl::IsUnavailable(harness_.Leave(2)));
  harness_.Detach(1);
  harness_.Pass(absl::Seconds(2));
  EXPECT_TRUE(harness_.session.awaits_successor());
  EXPECT_EQ(StateOf(2), MemberState::kLeft);
}

TEST(ASessionThatEndsWithItsDaemon, LetsMembersLeaveAtOnce) {
  SessionHarness harness(Options(absl::ZeroDuration()));
  harness.Start();
  EXPECT_TRUE(harness.Leave(2).ok());
  EXPECT_EQ(harness.session.member_state(2), MemberState::kLeft);
}

}  // namespace
}  // namespace gradwire::server

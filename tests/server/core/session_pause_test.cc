// An operator holds a session back between two steps.
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class SessionPause : public ::testing::Test {
 protected:
  static SessionOptions Options() {
    SessionOptions options = SmallOptions();
    options.eager_bytes = 80;
    options.step_timeout = absl::Minutes(1);
    options.silence_timeout = absl::Hours(1);  // these members send no heartbeats
    return options;
  }

  void SetUp() override { harness_.Start(); }

  absl::Status Pause(absl::Duration length, const std::string& reason = "") {
    return harness_.Pause(length, reason);
  }
  absl::Status Unpause() { return harness_.Unpause(); }
  std::string WaitingFor() const { return harness_.session.WaitingFor(harness_.now); }
  std::int64_t step() const { return harness_.session.step(); }
  SessionCore::State state() const { return harness_.session.state(); }

  void AnnounceEagerly(int rank, float value) {
    harness_.Receive(rank,
                     wire::Announce{.step = step(),
                                    .generation = 7,
                                    .parameters = {0},
                                    .rounds = {SumOf(16)},
                                    .eager = true},
                     Floats(16, value));
  }
  // One step of the bucket w alone.
  void RunStep() {
    for (const int rank : {0, 1}) AnnounceEagerly(rank, 1);
    for (const int rank : {0, 1}) harness_.EndStep(rank);
    harness_.Reduce();
  }

  SessionHarness harness_{Options()};
};

TEST_F(SessionPause, HoldsTheNextStepAndGrantsNothing) {
  ASSERT_TRUE(Pause(absl::Minutes(10), "the switch is replaced").ok());
  harness_.AnnounceAll({1});
  for (const int rank : {0, 1}) EXPECT_THAT(harness_.Sent<wire::Grant>(rank), IsEmpty());
  harness_.now += absl::Seconds(108);
  EXPECT_EQ(WaitingFor(), "paused by an operator for another 8m12s: the switch is replaced");
  ASSERT_TRUE(Unpause().ok());
  for (const int rank : {0, 1}) EXPECT_THAT(harness_.Sent<wire::Grant>(rank), SizeIs(1));
  EXPECT_THAT(WaitingFor(), Not(HasSubstr("paused")));
}

// What came eagerly waits in the daemon, and is summed after the pause.
TEST_F(SessionPause, HoldsEagerBucketsAndSumsThemAfterwards) {
  ASSERT_TRUE(Pause(absl::Minutes(10)).ok());
  AnnounceEagerly(0, 1);
  AnnounceEagerly(1, 2);
  for (const int rank : {0, 1}) harness_.EndStep(rank);
  EXPECT_THAT(harness_.reductions, IsEmpty());
  EXPECT_EQ(step(), 0);
  ASSERT_TRUE(Unpause().ok());
  ASSERT_THAT(harness_.reductions, SizeIs(1));
  EXPECT_THAT(harness_.reductions.front().inputs, SizeIs(2));
  harness_.Reduce();
  EXPECT_EQ(step(), 1);
  EXPECT_THAT(harness_.Sent<wire::StepDone>(1), SizeIs(1));
}

TEST_F(SessionPause, AStepWithoutElementsDoesNotSlipThrough) {
  ASSERT_TRUE(Pause(absl::Minutes(10)).ok());
  harness_.AnnounceAll({2});
  for (const int rank : {0, 1}) harness_.EndStep(rank);
  EXPECT_EQ(step(), 0);
  ASSERT_TRUE(Unpause().ok());
  EXPECT_EQ(step(), 1);
}

TEST_F(SessionPause, TheOpenStepEndsFirst) {
  AnnounceEagerly(0, 1);
  ASSERT_TRUE(Pause(absl::Minutes(10), "why").ok());
  EXPECT_THAT(WaitingFor(),
              AllOf(HasSubstr("step 0 waits for rank 1"),
                    HasSubstr("after this step it is paused by an operator for another 10m: why")));
  AnnounceEagerly(1, 1);
  for (const int rank : {0, 1}) harness_.EndStep(rank);
  harness_.Reduce();
  EXPECT_EQ(step(), 1);
  AnnounceEagerly(0, 1);
  AnnounceEagerly(1, 1);
  EXPECT_THAT(harness_.reductions, IsEmpty());
  EXPECT_EQ(WaitingFor(), "paused by an operator for another 10m: why");
}

TEST_F(SessionPause, EndsByItself) {
  ASSERT_TRUE(Pause(absl::Minutes(10)).ok());
  harness_.AnnounceAll({1});
  harness_.Pass(absl::Minutes(10) - absl::Milliseconds(100));
  EXPECT_THAT(harness_.Sent<wire::Grant>(0), IsEmpty());
  harness_.Pass(absl::Milliseconds(100));
  EXPECT_THAT(harness_.Sent<wire::Grant>(0), SizeIs(1));
  EXPECT_EQ(Unpause().message(), "session \"s\" is running, and not paused [GW704]");
}

// The step may take a minute, and each of the pauses takes longer.
TEST_F(SessionPause, TheStepTimeoutDoesNotCountIt) {
  ASSERT_TRUE(Pause(absl::Minutes(5)).ok());
  harness_.Announce(0, {1});
  harness_.Pass(absl::Minutes(5));
  harness_.Pass(absl::Seconds(59));
  EXPECT_EQ(state(), SessionCore::State::kRunning);
  harness_.Pass(absl::Seconds(2));
  EXPECT_EQ(state(), SessionCore::State::kFailed);
  EXPECT_THAT(std::string(harness_.session.failure().message()),
              AllOf(HasSubstr("no result after 1m"), HasSubstr("rank 1")));
}

// A broadcast may wait for a member whose step is held back.
TEST_F(SessionPause, TheTimeoutOfACollectiveDoesNotCountItEither) {
  harness_.Receive(0, wire::Enter{.generation = 7, .kind = wire::CollectiveKind::kBarrier});
  ASSERT_TRUE(Pause(absl::Minutes(5)).ok());
  EXPECT_THAT(WaitingFor(), AllOf(HasSubstr("barrier"), HasSubstr("; paused by an operator")));
  harness_.Pass(absl::Minutes(5) + absl::Seconds(59));
  EXPECT_EQ(state(), SessionCore::State::kRunning);
  harness_.Pass(absl::Seconds(2));
  EXPECT_EQ(state(), SessionCore::State::kFailed);
}

TEST_F(SessionPause, LostMembersAreStillFound) {
  ASSERT_TRUE(Pause(absl::Minutes(10)).ok());
  harness_.Detach(1);
  harness_.Pass(harness_.session.options().resume_grace + absl::Seconds(1));
  EXPECT_EQ(state(), SessionCore::State::kFailed);
  EXPECT_THAT(std::string(harness_.session.failure().message()), HasSubstr("rank 1"));
}

// The resumed stream repeats what was held.
TEST_F(SessionPause, AMemberMayResumeItsStreamMeanwhile) {
  ASSERT_TRUE(Pause(absl::Minutes(10)).ok());
  AnnounceEagerly(0, 1);
  AnnounceEagerly(1, 2);
  harness_.Detach(1);
  ASSERT_TRUE(harness_.Attach(1).ok());
  EXPECT_THAT(harness_.reductions, IsEmpty());
  ASSERT_TRUE(Unpause().ok());
  EXPECT_THAT(harness_.reductions, IsEmpty());  // the round starts over
  for (const int rank : {0, 1}) harness_.Contribute(rank, 0, 1);
  ASSERT_THAT(harness_.reductions, SizeIs(1));
}

TEST_F(SessionPause, ASecondOneReplacesTimeAndReason) {
  ASSERT_TRUE(Pause(absl::Minutes(10), "first").ok());
  harness_.Announce(0, {1});
  ASSERT_TRUE(Pause(absl::Minutes(2), "second").ok());
  harness_.Announce(1, {1});
  EXPECT_THAT(harness_.Sent<wire::Grant>(0), IsEmpty());
  EXPECT_EQ(WaitingFor(), "paused by an operator for another 2m: second");
  harness_.Pass(absl::Minutes(2));
  EXPECT_THAT(harness_.Sent<wire::Grant>(0), SizeIs(1));
}

TEST_F(SessionPause, MayBeLeftAndEvicted) {
  ASSERT_TRUE(Pause(absl::Minutes(10)).ok());
  ASSERT_TRUE(harness_.Leave(0).ok());
  ASSERT_TRUE(harness_.Leave(1).ok());
  EXPECT_EQ(state(), SessionCore::State::kClosed);
  EXPECT_EQ(Unpause().message(), "session \"s\" is closed, and not paused [GW704]");
  EXPECT_EQ(Pause(absl::Minutes(1)).message(),
            "session \"s\" is closed; only a running session can be paused [GW704]");

  SessionHarness other(Options());
  other.Start();
  Effects effects;
  ASSERT_TRUE(other.session.Pause(absl::Minutes(1), "", other.now, effects).ok());
  other.session.Fail(absl::CancelledError("an operator ended the session"), -1, effects);
  EXPECT_EQ(other.session.state(), SessionCore::State::kFailed);
}

TEST_F(SessionPause, NeedsARunningSessionAndAllowedValues) {
  SessionHarness joining(Options());
  Effects effects;
  EXPECT_EQ(joining.session.Pause(absl::Minutes(1), "", joining.now, effects),
            absl::FailedPreconditionError(
                "session \"s\" is joining; only a running session can be paused [GW704]"));
  EXPECT_EQ(Pause(absl::Hours(25)),
            absl::InvalidArgumentError("duration: 25h; allowed are 1s to 24h [GW701]"));
  EXPECT_EQ(Pause(absl::ZeroDuration()),
            absl::InvalidArgumentError("duration: 0; allowed are 1s to 24h [GW701]"));
  EXPECT_EQ(Pause(absl::Minutes(1), std::string(257, 'x')),
            absl::InvalidArgumentError("reason: it has 257 bytes; allowed are 256 [GW701]"));
  ASSERT_TRUE(Pause(absl::Hours(24), "a\nb").ok());
  EXPECT_THAT(WaitingFor(), HasSubstr("a\\u000ab"));
}

// Nobody in the session is blamed for it, and no step seems to have taken so long.
TEST_F(SessionPause, DoesNotCountAsWaiting) {
  RunStep();
  harness_.session.Observe(harness_.now);
  ASSERT_TRUE(Pause(absl::Minutes(10)).ok());
  AnnounceEagerly(0, 1);
  harness_.EndStep(0);
  harness_.now += absl::Minutes(10);
  harness_.session.Observe(harness_.now);
  harness_.Tick(absl::ZeroDuration());
  harness_.now += absl::Seconds(2);
  harness_.session.Observe(harness_.now);
  AnnounceEagerly(1, 1);
  harness_.EndStep(1);
  harness_.Reduce();
  harness_.session.Observe(harness_.now);
  const StepRecord& last = harness_.session.waits().recent().back();
  EXPECT_EQ(last.step, 1);
  EXPECT_EQ(last.duration(), absl::Seconds(2));
  EXPECT_EQ(last.straggler_gap(), absl::Seconds(2));
  EXPECT_EQ(last.members[1].caused.sum(), absl::Seconds(2));
}

}  // namespace
}  // namespace gradwire::server

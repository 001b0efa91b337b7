// How a session begins, loses members and ends. The step protocol is in session_step_test.cc.
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = SessionCore::State;
using MemberState = SessionCore::MemberState;

// The list with a change.
Manifest Changed(const Manifest& manifest, const std::function<void(Manifest::List&)>& change) {
  Manifest::List list = manifest.list();
  change(list);
  return list;
}

std::string JoinError(const std::function<void(JoinAsk&)>& change) {
  SessionHarness harness;
  JoinAsk ask = harness.Ask(-1);
  change(ask);
  const absl::StatusOr<int> rank = harness.Join(ask);
  EXPECT_FALSE(rank.ok());
  EXPECT_EQ(harness.session.state(), State::kJoining);
  return std::string(rank.status().message());
}

TEST(SessionJoin, StartsWhenEverybodyIsAttached) {
  SessionHarness harness;
  EXPECT_THAT(harness.Waiting(), HasSubstr("ranks 0, 1 of 2"));
  ASSERT_EQ(*harness.Join(harness.Ask(0)), 0);
  ASSERT_EQ(*harness.Join(harness.Ask(1)), 1);
  ASSERT_TRUE(harness.Attach(0).ok());
  EXPECT_THAT(harness.Waiting(), HasSubstr("waits for rank 1 of 2 to join"));
  EXPECT_THAT(harness.frames[0], IsEmpty());
  ASSERT_TRUE(harness.Attach(1).ok());
  EXPECT_EQ(harness.session.state(), State::kRunning);
  for (int r : {0, 1}) EXPECT_THAT(harness.Sent<wire::Welcome>(r), SizeIs(1));
}

TEST(SessionJoin, TheSameStartIdGetsItsRankAgain) {
  SessionHarness harness;
  JoinAsk ask = harness.Ask(-1);
  EXPECT_EQ(*harness.Join(ask), 0);
  EXPECT_EQ(*harness.Join(ask), 0);
  ask.rank = 1;
  EXPECT_EQ(harness.Join(ask).status().message(),
            "this process has rank 0 already and asks for rank 1 [GW204]");
}

TEST(SessionJoin, AnyRankMeansTheFirstFreeOne) {
  SessionHarness harness(SmallOptions(3));
  ASSERT_EQ(*harness.Join(harness.Ask(1)), 1);
  JoinAsk any = harness.Ask(-1);
  for (int expected : {0, 2}) {
    ++any.start_id;
    any.start_id += 1000;
    EXPECT_EQ(*harness.Join(any), expected);
  }
  any.start_id += 1000;
  EXPECT_EQ(harness.Join(any).status().message(), "all 3 ranks of session \"s\" are taken [GW204]");
}

TEST(SessionJoin, NamesWhatIsWrong) {
  EXPECT_EQ(JoinError([](JoinAsk& ask) { ask.world_size = 3; }),
            "world_size is 3; the session's is 2 [GW203]");
  EXPECT_THAT(JoinError([](JoinAsk& ask) { ask.rank = 7; }),
              HasSubstr("rank is 7; allowed are 0 to 1"));
  EXPECT_THAT(JoinError([](JoinAsk& ask) { ask.rank = -2; }), HasSubstr("rank is -2"));
  EXPECT_THAT(JoinError([](JoinAsk& ask) { ask.spec.comm_hook = "fp16"; }),
              HasSubstr("comm_hook is \"fp16\"; the session's is \"no\""));
}

TEST(SessionJoin, NamesTheFirstDifferenceOfTheManifest) {
  EXPECT_EQ(JoinError([](JoinAsk& ask) {
              ask.manifest = Changed(ask.manifest, [](auto& list) { list[1].name = "c"; });
            }),
            "manifest parameter 1: name is c; the session's is b [GW202]");
  EXPECT_EQ(JoinError([](JoinAsk& ask) {
              ask.manifest = Changed(ask.manifest, [](auto& list) { list[1].shape = {40}; });
            }),
            "manifest parameter 1 (b): shape is [40]; the session's is [4, 10] [GW202]");
  EXPECT_EQ(JoinError([](JoinAsk& ask) {
              ask.manifest =
                  Changed(ask.manifest, [](auto& list) { list[0].dtype = DType::kFloat64; });
            }),
            "manifest parameter 0 (w): dtype is float64; the session's is float32 [GW202]");
  EXPECT_EQ(JoinError([](JoinAsk& ask) {
              ask.manifest = Changed(ask.manifest, [](auto& list) { list.pop_back(); });
            }),
            "number of manifest parameters is 2; the session's is 3 [GW202]");
}

TEST(SessionJoin, TheMissingMemberWithSomethingElseEndsTheWaitForAll) {
  SessionHarness harness;
  ASSERT_TRUE(harness.Join(harness.Ask(0)).ok());
  ASSERT_TRUE(harness.Attach(0).ok());
  JoinAsk other = harness.Ask(-1);  // nobody waits for this one
  other.start_id = 999;
  other.spec.comm_hook = "fp16";
  EXPECT_FALSE(harness.Join(other).ok());
  other.rank = 0;  // this one neither
  EXPECT_FALSE(harness.Join(other).ok());
  EXPECT_EQ(harness.session.state(), SessionCore::State::kJoining);
  other.rank = 1;
  EXPECT_FALSE(harness.Join(other).ok());
  EXPECT_EQ(harness.session.state(), SessionCore::State::kFailed);
  const auto failures = harness.Sent<wire::Failure>(0);
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].blamed_rank, 1);
  EXPECT_THAT(failures[0].message,
              AllOf(HasSubstr("rank 1 asked to join"),
                    HasSubstr("comm_hook is \"fp16\"; the session's is \"no\"")));
}

TEST(SessionJoin, ARankThatIsHeldIsRefusedToAnotherProcess) {
  SessionHarness harness;
  harness.Start();
  JoinAsk other = harness.Ask(1);
  other.start_id = 999;
  EXPECT_EQ(harness.Join(other).status().code(), absl::StatusCode::kAlreadyExists);
  Effects effects;
  EXPECT_FALSE(harness.session.Attach(1, 999, 0, 50, harness.now, effects).ok());
  EXPECT_EQ(harness.session.Leave(1, 999, harness.now, effects).message(),
            "rank 1 is not held by this process");
  EXPECT_THAT(effects, IsEmpty());
  EXPECT_EQ(harness.session.member_state(1), MemberState::kConnected);
}

TEST(SessionJoin, AnUnusedTokenFreesTheRank) {
  SessionHarness harness;
  ASSERT_TRUE(harness.Join(harness.Ask(0)).ok());
  harness.Pass(absl::Seconds(4.9));
  EXPECT_EQ(harness.session.member_state(0), MemberState::kJoined);
  harness.Pass(absl::Seconds(0.3));
  EXPECT_EQ(harness.session.member_state(0), MemberState::kAbsent);
  EXPECT_EQ(harness.Attach(0).message(), "rank 0 is absent; join again [GW209]");
}

TEST(SessionJoin, AStreamThatEndsOrFallsSilentBeforeTheStartFreesTheRank) {
  SessionHarness harness;
  for (const bool silent : {false, true}) {
    ASSERT_TRUE(harness.Join(harness.Ask(0)).ok());
    ASSERT_TRUE(harness.Attach(0).ok());
    if (!silent) harness.Detach(0);
    harness.Pass(silent ? absl::Seconds(15.2) : absl::Seconds(1.2));
    EXPECT_EQ(harness.session.member_state(0), MemberState::kAbsent);
  }
  EXPECT_EQ(harness.session.state(), State::kJoining);
}

TEST(SessionJoin, TheDeadlineSaysWhoIsMissing) {
  SessionOptions options = SmallOptions(3);
  options.join_timeout = absl::Seconds(2);
  SessionHarness harness(options);
  ASSERT_TRUE(harness.Join(harness.Ask(1)).ok());
  ASSERT_TRUE(harness.Attach(1).ok());
  harness.Pass(absl::Seconds(2.2));
  EXPECT_EQ(harness.Message(),
            "session \"s\" failed: waited 2s for ranks 0, 2 of 3 to join [GW205]");
  ASSERT_THAT(harness.Sent<wire::Failure>(1), SizeIs(1));
  EXPECT_EQ(harness.Sent<wire::Failure>(1)[0].blamed_rank, -1);
  EXPECT_EQ(harness.Join(harness.Ask(0)).status(), harness.session.failure());
}

TEST(SessionJoin, NoFrameBeforeTheStart) {
  SessionHarness harness;
  ASSERT_TRUE(harness.Join(harness.Ask(0)).ok());
  ASSERT_TRUE(harness.Attach(0).ok());
  harness.Receive(0, wire::Heartbeat{});
  EXPECT_EQ(harness.session.state(), State::kJoining);
  harness.Announce(0, {0});
  EXPECT_THAT(harness.Message(), HasSubstr("rank 0: sent a frame before its Welcome"));
}

TEST(SessionJoin, LeavingBeforeTheStartFreesTheRank) {
  SessionHarness harness;
  ASSERT_TRUE(harness.Join(harness.Ask(0)).ok());
  ASSERT_TRUE(harness.Attach(0).ok());
  EXPECT_TRUE(harness.Leave(0).ok());
  EXPECT_EQ(harness.session.member_state(0), MemberState::kAbsent);
  EXPECT_THAT(harness.closed, SizeIs(1));
}

TEST(SessionAttach, RefusesWhatDoesNotFit) {
  SessionHarness harness;
  harness.Start();
  EXPECT_EQ(harness.Attach(5).message(), "rank 5 is not in the session [GW209]");
  EXPECT_EQ(harness.Attach(0, 3).message(),
            "the member is at step 3, the session at step 0 [GW309]");
  EXPECT_EQ(harness.Attach(0, -2).message(),
            "the member is at step -2, the session at step 0 [GW309]");
}

TEST(SessionAttach, ANewStreamReplacesTheOldOne) {
  SessionHarness harness;
  harness.Start();
  const std::uint64_t old = harness.streams[0];
  ASSERT_TRUE(harness.Attach(0).ok());
  ASSERT_THAT(harness.closed, SizeIs(1));
  EXPECT_EQ(harness.closed[0].connection, old);
  Effects effects;
  harness.session.Receive(0, old, {.header = harness.AnnounceOf({99})}, harness.now, effects);
  harness.session.Detach(0, old, harness.now, effects);
  EXPECT_THAT(effects, IsEmpty());
  EXPECT_EQ(harness.session.member_state(0), MemberState::kConnected);
}

TEST(SessionLoss, AClosedStreamIsADeathAfterTheGrace) {
  SessionHarness harness(SmallOptions(3));
  harness.Start();
  harness.AnnounceAll({0});
  harness.Detach(1);
  harness.Pass(absl::Seconds(0.9));
  EXPECT_EQ(harness.session.state(), State::kRunning);
  harness.Pass(absl::Seconds(0.3));
  EXPECT_EQ(harness.Message(),
            "session \"s\" failed: rank 1 was lost in step 0: its connection closed and did not "
            "resume [GW301]");
  ASSERT_THAT(harness.departed, SizeIs(1));
  EXPECT_EQ(harness.departed[0].rank, 1);
  EXPECT_THAT(harness.departed[0].lost, HasSubstr("in step 0: its connection closed"));
  for (int r : {0, 2}) {
    ASSERT_THAT(harness.Sent<wire::Failure>(r), SizeIs(1));
    EXPECT_EQ(harness.Sent<wire::Failure>(r)[0], harness.Sent<wire::Failure>(0)[0]);
    EXPECT_EQ(harness.Sent<wire::Failure>(r)[0].blamed_rank, 1);
    EXPECT_EQ(harness.Sent<wire::Failure>(r)[0].message, harness.Message());
  }
  EXPECT_EQ(harness.Attach(1), harness.session.failure());
  EXPECT_EQ(harness.session.held_bytes(), 0U);
}

TEST(SessionLoss, AResumeWithinTheGraceStartsTheRoundOver) {
  SessionHarness harness;
  harness.Start();
  harness.AnnounceAll({0});
  harness.Contribute(0, 0, 1);
  harness.Detach(1);
  harness.Pass(absl::Seconds(0.5));
  ASSERT_TRUE(harness.Attach(1).ok());
  harness.Pass(absl::Seconds(2));
  EXPECT_EQ(harness.session.state(), State::kRunning);
  ASSERT_THAT(harness.Sent<wire::Restart>(0), SizeIs(1));
  const wire::Restart restart = harness.Sent<wire::Restart>(0)[0];
  EXPECT_EQ(restart.attempt, 1U);
  ASSERT_THAT(restart.open, SizeIs(1));
  EXPECT_EQ(restart.open[0], (wire::RoundId{.step = 0, .attempt = 1, .bucket = 0, .round = 0}));
  EXPECT_TRUE(harness.Sent<wire::Welcome>(1).back().resumed);
  EXPECT_EQ(harness.session.held_bytes(), 0U);
}

TEST(SessionLoss, SilenceIsADeathAndSlownessIsNot) {
  SessionHarness harness;
  harness.Start();
  for (int i = 0; i < 60; ++i) {
    harness.Receive(0, wire::Heartbeat{});
    harness.Receive(1, wire::Heartbeat{});
    harness.Pass(absl::Seconds(1));
  }
  EXPECT_EQ(harness.session.state(), State::kRunning);
  for (int i = 0; i < 16; ++i) {
    harness.Receive(0, wire::Heartbeat{});
    harness.Pass(absl::Seconds(1));
  }
  EXPECT_THAT(harness.Message(),
              HasSubstr("rank 1 was lost before step 0: nothing was heard from it for 15s"));
}

TEST(SessionLoss, TheDaemonsOwnPauseIsNobodysFault) {
  SessionHarness harness;
  harness.Start();
  harness.Detach(1);
  harness.Tick(absl::Minutes(1));
  EXPECT_EQ(harness.session.state(), State::kRunning);
  ASSERT_TRUE(harness.Attach(1).ok());
  harness.Pass(absl::Seconds(14));
  EXPECT_EQ(harness.session.state(), State::kRunning);
}

TEST(SessionLoss, ThePauseIsNotGivenToAMemberLostAfterIt) {
  SessionHarness harness;
  harness.Start();
  harness.now += absl::Minutes(1);
  harness.Detach(1);
  harness.Tick(absl::ZeroDuration());
  harness.Pass(absl::Seconds(1.2));
  EXPECT_THAT(harness.Message(), HasSubstr("rank 1 was lost"));
}

// Each tick counts for a quarter of a second at most, but it counts.
TEST(SessionLoss, WhereEveryTickIsSlowTheDeadAreStillFound) {
  for (const bool closed : {true, false}) {
    SessionHarness harness;
    harness.Start();
    if (closed) harness.Detach(1);
    int ticks = 0;
    while (harness.session.state() == State::kRunning && ticks < 100) {
      harness.Tick(absl::Seconds(2));
      harness.Receive(0, wire::Heartbeat{});
      ++ticks;
    }
    EXPECT_THAT(harness.Message(), HasSubstr("rank 1 was lost"));
    EXPECT_GT(ticks, closed ? 3 : 59);  // 1 s and 15 s, in quarters
    EXPECT_LE(ticks, closed ? 5 : 61);
  }
}

TEST(SessionLoss, AFailedSessionShowsNobodyAsConnected) {
  SessionHarness harness(SmallOptions(3));
  harness.Start();
  harness.Detach(1);
  harness.Pass(absl::Seconds(1.2));
  ASSERT_EQ(harness.session.state(), State::kFailed);
  EXPECT_EQ(harness.session.member_state(1), MemberState::kLost);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(Name(harness.session.member_state(rank)), "ended");
    harness.Detach(rank);  // as the daemon's own end of the stream comes back
    EXPECT_EQ(Name(harness.session.member_state(rank)), "ended");
  }
}

TEST(SessionLoss, OneThatFallsSilentIsShownAsLost) {
  SessionHarness harness;
  harness.Start();
  for (int i = 0; i < 16; ++i) {
    harness.Receive(0, wire::Heartbeat{});
    harness.Pass(absl::Seconds(1));
  }
  ASSERT_EQ(harness.session.state(), State::kFailed);
  EXPECT_EQ(Name(harness.session.member_state(1)), "lost");
  EXPECT_EQ(Name(harness.session.member_state(0)), "ended");
}

TEST(SessionLoss, TheStepTimeoutSaysWhatItWaitedFor) {
  SessionOptions options = SmallOptions();
  options.step_timeout = absl::Seconds(10);
  SessionHarness harness(options);
  harness.Start();
  harness.Announce(0, {0, 1});
  harness.Pass(absl::Seconds(10.2));
  EXPECT_THAT(harness.Message(), HasSubstr("no result after 10s: step 0 waits for rank 1 "));
  EXPECT_THAT(harness.Message(), HasSubstr("to announce bucket [w, b]"));
}

TEST(SessionLoss, TheStepTimeoutCoversCollectives) {
  SessionOptions options = SmallOptions();
  options.step_timeout = absl::Seconds(10);
  SessionHarness harness(options);
  harness.Start();
  harness.Receive(1, wire::Enter{.number = 0, .generation = 7});
  harness.Pass(absl::Seconds(10.2));
  EXPECT_THAT(harness.Message(), HasSubstr("barrier 0 waits for rank 0 to enter"));
}

TEST(SessionLeave, TheLastOneClosesTheSession) {
  SessionHarness harness;
  harness.Start();
  EXPECT_TRUE(harness.Leave(0).ok());
  EXPECT_TRUE(harness.Leave(0).ok());
  EXPECT_EQ(harness.session.member_state(0), MemberState::kLeft);
  EXPECT_THAT(harness.Waiting(), HasSubstr("waits for rank 1 "));
  EXPECT_EQ(harness.Join(harness.Ask(0)).status().message(), "rank 0 has left the session [GW316]");
  EXPECT_TRUE(harness.Leave(1).ok());
  EXPECT_EQ(harness.session.state(), State::kClosed);
  EXPECT_THAT(harness.closed, SizeIs(2));
  ASSERT_THAT(harness.departed, SizeIs(2));
  EXPECT_EQ(harness.departed[1].rank, 1);
  EXPECT_EQ(harness.departed[1].lost, "");
}

TEST(SessionLeave, InTheMiddleOfAStepFailsTheOthers) {
  SessionHarness harness;
  harness.Start();
  harness.Announce(1, {0});
  EXPECT_TRUE(harness.Leave(0).ok());
  EXPECT_THAT(harness.Message(), HasSubstr("rank 0 left before the end of step 0"));
  EXPECT_EQ(harness.Sent<wire::Failure>(1)[0].blamed_rank, 0);
}

TEST(SessionLeave, InTheMiddleOfACollectiveFailsTheOthers) {
  SessionHarness harness;
  harness.Start();
  harness.Receive(1, wire::Enter{.number = 0, .generation = 7});
  EXPECT_TRUE(harness.Leave(0).ok());
  EXPECT_THAT(harness.Message(), HasSubstr("rank 0 left before the end of a collective"));
}

// The others still take the broadcast; the member's last acknowledgement may be under way.
TEST(SessionLeave, AfterItsPartOfABroadcastIsFine) {
  SessionHarness harness(SmallOptions(3));
  harness.Start();
  for (int r : {0, 1, 2}) {
    harness.Receive(r, wire::Enter{0, 7, wire::CollectiveKind::kBroadcast, 0, 16});
  }
  harness.Receive(0, wire::CollectiveChunk{0, 0}, Floats(4, 1));
  EXPECT_TRUE(harness.Leave(1).ok());
  EXPECT_EQ(harness.session.state(), State::kRunning);
  harness.Receive(2, wire::CollectiveAck{0, 1});
  EXPECT_EQ(harness.Sent<wire::CollectiveAck>(0).back().received, 1U);
  EXPECT_TRUE(harness.Leave(0).ok());
  EXPECT_TRUE(harness.Leave(2).ok());
  EXPECT_EQ(harness.session.state(), State::kClosed);
}

// Rank 1 has its broadcast and is at the barrier; rank 2 has it too, but no barrier ends without
// it.
TEST(SessionLeave, WhenOthersHaveEnteredTheNextCollectiveFailsThemAtOnce) {
  SessionHarness harness(SmallOptions(3));
  harness.Start();
  for (int r : {0, 1, 2}) {
    harness.Receive(r, wire::Enter{0, 7, wire::CollectiveKind::kBroadcast, 0, 16});
  }
  harness.Receive(0, wire::CollectiveChunk{0, 0}, Floats(4, 1));
  harness.Receive(1, wire::Enter{.number = 1, .generation = 7});
  EXPECT_TRUE(harness.Leave(2).ok());
  EXPECT_THAT(harness.Message(), HasSubstr("rank 2 left before the end of a collective"));
  EXPECT_EQ(harness.Sent<wire::Failure>(1)[0].blamed_rank, 2);
}

TEST(SessionLeave, NothingGoesOnWithoutTheOneWhoLeft) {
  const std::vector<std::pair<wire::Header, std::string>> cases = {
      {wire::Announce{0, 7, {0}, {SumOf(16)}}, "rank 1 left before the end of step 0"},
      {wire::EndStep{0, 7}, "rank 1 left before the end of step 0"},
      {wire::Enter{.number = 0, .generation = 7}, "rank 1 left before the end of a collective"},
  };
  for (const auto& [header, message] : cases) {
    SessionHarness harness;
    harness.Start();
    EXPECT_TRUE(harness.Leave(1).ok());
    harness.Receive(0, header);
    EXPECT_THAT(harness.Message(), HasSubstr(message));
    EXPECT_EQ(harness.Sent<wire::Failure>(0)[0].blamed_rank, 1);
  }
}

TEST(SessionOptionsTest, NamesTheFieldAndWhatIsAllowed) {
  const auto error = [](const std::function<void(SessionOptions&)>& change) {
    SessionOptions options = SmallOptions();
    EXPECT_TRUE(options.Validate().ok());
    change(options);
    return std::string(options.Validate().message());
  };
  using O = SessionOptions;
  EXPECT_THAT(error([](O& o) { o.name = "a b"; }), HasSubstr("session: the name"));
  EXPECT_THAT(error([](O& o) { o.name = std::string(129, 'x'); }), HasSubstr("1 to 128"));
  EXPECT_THAT(error([](O& o) { o.world_size = 0; }), HasSubstr("world_size is 0; allowed are 1"));
  EXPECT_THAT(error([](O& o) { o.chunk_bytes = 100; }), HasSubstr("chunk_bytes is 100"));
  EXPECT_THAT(error([](O& o) { o.window_chunks = 0; }), HasSubstr("window_chunks is 0"));
  EXPECT_THAT(error([](O& o) { o.open_buckets = 0; }), HasSubstr("open_buckets is 0"));
  EXPECT_THAT(
      error([](O& o) { o.manifest = Changed(o.manifest, [](auto& list) { list[1].name = "w"; }); }),
      HasSubstr("names parameter w twice"));
  EXPECT_THAT(error([](O& o) {
                o.manifest = Changed(o.manifest, [](auto& list) { list[0].shape = {-1}; });
              }),
              HasSubstr("\"w\""));
  EXPECT_THAT(error([](O& o) {
                o.manifest = Changed(o.manifest, [](auto& list) { list[0].shape = {1 << 30}; });
              }),
              HasSubstr("chunks of 64 bytes; at most 1048576"));
}

// A launcher starts a process again at once.
TEST(BeforeTheSessionRuns, ARankWhoseStreamHasEndedIsToBeAskedForAgain) {
  SessionHarness harness;
  ASSERT_TRUE(harness.Join(harness.Ask(0)).ok());
  JoinAsk other = harness.Ask(0);
  other.start_id = 999;
  EXPECT_EQ(harness.Join(other).status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(harness.Attach(0).ok());
  EXPECT_EQ(harness.Join(other).status().code(), absl::StatusCode::kAlreadyExists);
  harness.Detach(0);
  EXPECT_EQ(harness.Join(other).status().code(), absl::StatusCode::kUnavailable);
  harness.Pass(absl::Seconds(2));
  EXPECT_TRUE(harness.Join(other).ok());
}

}  // namespace
}  // namespace gradwire::server

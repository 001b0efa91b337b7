// A leaf's own session, with the upstream played by hand.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Ne;
using ::testing::SizeIs;
using What = UpstreamEffect::What;

SessionOptions LeafOptions() {
  SessionOptions options = SmallOptions(5);
  options.window_chunks = 16;
  options.leaf = {.first = 2, .members = 2, .hook = *HookSpec::Parse("fp16"), .upstream = "root:1"};
  return options;
}

// Of five ranks it has 2 and 3.
class Leaf : public SessionHarness {
 public:
  Leaf() : SessionHarness(LeafOptions()) {}

  JoinAsk MemberAsk(int rank) const {
    JoinAsk ask = Ask(rank);
    ask.spec = session.options().leaf.hook;
    ask.node = {.first = 2, .members = 2};
    return ask;
  }
  void AttachBoth() {
    for (const int rank : {2, 3}) {
      ASSERT_EQ(*Join(MemberAsk(rank)), rank);
      ASSERT_TRUE(Attach(rank).ok());
    }
  }
  void StartLeaf() {
    AttachBoth();
    Upstream([&](Effects& effects) { session.UpstreamJoined({}, effects); });
    ASSERT_EQ(session.state(), SessionCore::State::kRunning);
    upstream.clear();
  }
  template <typename Event>
  void Upstream(Event event) {
    Effects effects;
    event(effects);
    TakeAll(std::move(effects));
  }
  void Conclude(std::int64_t step, Verdict verdict, const std::string& reason = "",
                const std::string& drift = "") {
    Upstream([&](Effects& effects) {
      session.UpstreamConcluded(step, {.verdict = verdict, .reason = reason, .drift = drift}, now,
                                effects);
    });
  }
  void GoOn(const UpstreamProgress& progress) {
    Upstream([&](Effects& effects) { session.UpstreamGoesOn(progress, now, effects); });
  }
  void EnterBroadcast(std::uint64_t number, int root, std::uint64_t bytes) {
    for (const int rank : {2, 3}) {
      Receive(rank, wire::Enter{.number = number,
                                .generation = 7,
                                .kind = wire::CollectiveKind::kBroadcast,
                                .root = root,
                                .bytes = bytes});
    }
  }
  void SendChunk(int rank, std::uint32_t chunk, std::size_t floats = 16) {
    Receive(rank, wire::CollectiveChunk{.number = 0, .chunk = chunk}, Floats(floats, 1));
  }
  void AckChunks(int rank, std::uint32_t received) {
    Receive(rank, wire::CollectiveAck{.number = 0, .received = received});
  }
  // Time passes, and whoever is here is heard.
  void PassAlive(absl::Duration time) {
    for (const absl::Time end = now + time; now < end; Tick(absl::Seconds(1))) {
      for (const auto& [rank, stream] : streams) Receive(rank, wire::Heartbeat{});
    }
  }
  std::vector<What> Wishes() const {
    std::vector<What> wishes;
    for (const UpstreamEffect& effect : upstream) wishes.push_back(effect.what);
    return wishes;
  }
};

TEST(SessionLeaf, BeginsWhenTheUpstreamsSessionDoes) {
  Leaf leaf;
  leaf.AttachBoth();
  EXPECT_THAT(leaf.Wishes(), ElementsAre(What::kJoin));
  EXPECT_EQ(leaf.session.state(), SessionCore::State::kJoining);
  EXPECT_EQ(leaf.Waiting(),
            "waits for the upstream daemon at root:1, where members of other nodes are missing");
  leaf.session.UpstreamWaits("refused");
  EXPECT_EQ(leaf.Waiting(), "waits for the upstream daemon at root:1: refused");
  // The root's timeout counts.
  leaf.PassAlive(leaf.session.options().join_timeout + absl::Seconds(1));
  EXPECT_EQ(leaf.session.state(), SessionCore::State::kJoining);
  leaf.Upstream([&](Effects& effects) { leaf.session.UpstreamJoined({}, effects); });
  ASSERT_THAT(leaf.Sent<wire::Welcome>(2), SizeIs(1));
  EXPECT_EQ(leaf.Sent<wire::Welcome>(2)[0].group, std::nullopt) << "the leaf has the weight";
  EXPECT_THAT(leaf.Wishes(), ElementsAre(What::kJoin)) << "asked once";
}

TEST(SessionLeaf, AMemberThatIsLostBeforeTheStartIsReplaced) {
  Leaf leaf;
  leaf.AttachBoth();
  leaf.Detach(3);
  leaf.Pass(leaf.session.options().resume_grace + absl::Seconds(1));
  leaf.Upstream([&](Effects& effects) { leaf.session.UpstreamJoined({}, effects); });
  EXPECT_EQ(leaf.session.state(), SessionCore::State::kJoining);
  EXPECT_THAT(leaf.Waiting(), HasSubstr("waits for rank 3 of 5 to join"));
  ASSERT_EQ(*leaf.Join(leaf.MemberAsk(3)), 3);
  ASSERT_TRUE(leaf.Attach(3).ok());
  EXPECT_EQ(leaf.session.state(), SessionCore::State::kRunning);
  EXPECT_THAT(leaf.Wishes(), ElementsAre(What::kJoin)) << "the leaf is a member already";
}

TEST(SessionLeaf, MissingMembersAreThoseOfItsNode) {
  Leaf leaf;
  ASSERT_EQ(*leaf.Join(leaf.MemberAsk(3)), 3);
  ASSERT_TRUE(leaf.Attach(3).ok());
  EXPECT_EQ(leaf.Waiting(), "waits for rank 2 of 5 to join");
  EXPECT_THAT(leaf.upstream, IsEmpty());
  leaf.PassAlive(leaf.session.options().join_timeout + absl::Seconds(1));
  EXPECT_THAT(leaf.Message(), HasSubstr("for rank 2 of 5 to join"));
}

TEST(SessionLeaf, OnlyMembersOfItsNodeJoin) {
  Leaf leaf;
  ASSERT_EQ(*leaf.Join(leaf.MemberAsk(2)), 2);
  EXPECT_THAT(std::string(leaf.Join(leaf.MemberAsk(4)).status().message()),
              AllOf(HasSubstr("rank is 4; allowed on this node are 2 to 3"), HasSubstr("[GW216]")));
  JoinAsk other = leaf.MemberAsk(3);
  other.node = {.first = 3, .members = 2};
  EXPECT_THAT(std::string(leaf.session.options().CheckSame(other).message()),
              HasSubstr("node: ranks 3 to 4; the other members of this leaf have 2 to 3"));
  other.node = {.first = INT32_MAX, .members = INT32_MAX};
  EXPECT_THAT(std::string(leaf.session.options().CheckSame(other).message()),
              HasSubstr("node: ranks 2147483647 to 4294967293;"));
  JoinAsk plain = leaf.MemberAsk(3);
  plain.spec = HookSpec();
  EXPECT_THAT(std::string(leaf.session.options().CheckSame(plain).message()), HasSubstr("[GW201]"));
}

TEST(SessionLeaf, AStepEndsWithTheRootsVerdict) {
  Leaf leaf;
  leaf.StartLeaf();
  for (const int rank : {2, 3}) leaf.Announce(rank, {1});
  for (const int rank : {2, 3}) {
    for (std::uint32_t c = 0; c < 3; ++c) {
      wire::Contribution chunk = leaf.Chunk(rank, 1, c);
      chunk.received = 0;
      leaf.Receive(rank, chunk, Floats(c < 2 ? 16 : 8, 1));
    }
  }
  ASSERT_THAT(leaf.reductions, SizeIs(3)) << "no result is out, and the window holds the bucket";
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_THAT(*leaf.reductions[c].parameters, ElementsAre(1));
    EXPECT_EQ(leaf.reductions[c].begin, 16 * c);
    EXPECT_EQ(leaf.reductions[c].weight, 2);
  }
  for (const int rank : {2, 3}) leaf.EndStep(rank);
  EXPECT_THAT(leaf.Waiting(), HasSubstr("waits for the upstream daemon's result of bucket [b]"));
  EXPECT_THAT(leaf.upstream, IsEmpty());
  leaf.Reduce();
  EXPECT_THAT(leaf.Wishes(), ElementsAre(What::kEndStep));
  EXPECT_EQ(leaf.session.step(), 0) << "it does not decide";
  EXPECT_THAT(leaf.Waiting(), HasSubstr("waits for the upstream daemon to conclude it"));
  // A step that only the root keeps waiting has the root's timeout.
  leaf.PassAlive(leaf.session.options().step_timeout + absl::Seconds(1));
  EXPECT_EQ(leaf.session.state(), SessionCore::State::kRunning) << leaf.Message();
  leaf.Conclude(5, Verdict::kApply);
  EXPECT_EQ(leaf.session.step(), 0) << "of another step";
  leaf.Conclude(0, Verdict::kSkip);
  EXPECT_EQ(leaf.session.step(), 1);
  ASSERT_THAT(leaf.Sent<wire::StepDone>(2), SizeIs(1));
  EXPECT_EQ(leaf.Sent<wire::StepDone>(2)[0].verdict, Verdict::kSkip);
}

// The root must hear of it, or other nodes' buckets would lack it.
TEST(SessionLeaf, ABucketWithoutElementsGoesUpToo) {
  Leaf leaf;
  leaf.StartLeaf();
  for (const int rank : {2, 3}) leaf.Announce(rank, {2});
  ASSERT_THAT(leaf.Wishes(), ElementsAre(What::kBucket));
  EXPECT_THAT(leaf.upstream[0].parameters, ElementsAre(2));
  for (const int rank : {2, 3}) leaf.EndStep(rank);
  EXPECT_THAT(leaf.Wishes(), ElementsAre(What::kBucket, What::kEndStep));
}

TEST(SessionLeaf, ABarrierEndsWithTheRoots) {
  Leaf leaf;
  leaf.StartLeaf();
  const wire::Enter enter{.number = 0, .generation = 7, .kind = wire::CollectiveKind::kBarrier};
  leaf.Receive(2, enter);
  EXPECT_THAT(leaf.upstream, IsEmpty());
  leaf.Receive(3, enter);
  EXPECT_THAT(leaf.Wishes(), ElementsAre(What::kBarrier));
  EXPECT_THAT(leaf.Waiting(), HasSubstr("barrier 0 waits for the upstream daemon"));
  EXPECT_THAT(leaf.Sent<wire::Begin>(2), IsEmpty());
  leaf.GoOn({});
  EXPECT_THAT(leaf.Sent<wire::Begin>(2), SizeIs(1));
  // Once more than asked for.
  leaf.GoOn({});
  EXPECT_THAT(leaf.Sent<wire::Begin>(2), SizeIs(1));
}

TEST(SessionLeaf, ABroadcastOfAMemberGoesUp) {
  Leaf leaf;
  leaf.StartLeaf();
  leaf.EnterBroadcast(0, 2, 96);
  ASSERT_THAT(leaf.Wishes(), ElementsAre(What::kBroadcast));
  EXPECT_EQ(leaf.upstream[0].root, 2);
  EXPECT_EQ(leaf.upstream[0].bytes, 96U);
  EXPECT_EQ(leaf.Waiting(), "broadcast 0 waits for the upstream daemon");
  // The root's timeout counts.
  leaf.PassAlive(leaf.session.options().step_timeout + absl::Seconds(1));
  EXPECT_EQ(leaf.session.state(), SessionCore::State::kRunning) << leaf.Message();
  leaf.GoOn({});
  leaf.SendChunk(2, 0);
  leaf.SendChunk(2, 1, 8);
  ASSERT_THAT(leaf.Wishes(), ElementsAre(What::kBroadcast, What::kBytes, What::kBytes));
  EXPECT_EQ(leaf.upstream[1].payload->bytes(), 64U);
  EXPECT_EQ(leaf.upstream[2].payload->bytes(), 32U);
  EXPECT_THAT(leaf.Sent<wire::CollectiveChunk>(3), SizeIs(2));
  leaf.AckChunks(3, 2);
  EXPECT_THAT(leaf.Sent<wire::CollectiveAck>(2), IsEmpty());
  leaf.GoOn({.what = UpstreamProgress::What::kTaken, .taken = 95});
  EXPECT_EQ(leaf.Waiting(), "broadcast 0 waits for the upstream daemon");
  leaf.PassAlive(leaf.session.options().step_timeout + absl::Seconds(1));
  leaf.GoOn({.what = UpstreamProgress::What::kTaken, .taken = 96});
  EXPECT_EQ(leaf.Sent<wire::CollectiveAck>(2).back(), (wire::CollectiveAck{0, 2}));
  EXPECT_THAT(leaf.Waiting(), HasSubstr("to begin step 0"));
}

TEST(SessionLeaf, ABroadcastFromElsewhereComesDown) {
  Leaf leaf;
  leaf.StartLeaf();
  leaf.EnterBroadcast(0, 4, 96);
  ASSERT_THAT(leaf.Wishes(), ElementsAre(What::kBroadcast));
  EXPECT_EQ(leaf.upstream[0].room, 64U);
  leaf.GoOn({});
  for (int i = 0; i < 3; ++i) {
    leaf.GoOn({.what = UpstreamProgress::What::kBytes, .payload = Floats(8, 1)});
  }
  for (const int rank : {2, 3}) EXPECT_THAT(leaf.Sent<wire::CollectiveChunk>(rank), SizeIs(2));
  for (const int rank : {2, 3}) leaf.AckChunks(rank, 1);
  leaf.Detach(3);
  ASSERT_TRUE(leaf.Attach(3).ok());
  EXPECT_THAT(leaf.Sent<wire::CollectiveChunk>(3), SizeIs(3)) << "the one that it may lack";
  for (const int rank : {2, 3}) leaf.AckChunks(rank, 2);
  EXPECT_THAT(leaf.Wishes(), ElementsAre(What::kBroadcast, What::kRoom, What::kRoom));
  EXPECT_EQ(leaf.upstream[1].room, 128U);
  EXPECT_EQ(leaf.upstream[2].room, 192U) << "for all";
  EXPECT_EQ(leaf.session.held_bytes(), 0U);
}

// A member that never takes its bytes is this leaf's matter.
TEST(SessionLeaf, AMemberThatHoldsUpABroadcastIsNamed) {
  Leaf leaf;
  leaf.StartLeaf();
  leaf.EnterBroadcast(0, 4, 64);
  leaf.GoOn({});
  leaf.GoOn({.what = UpstreamProgress::What::kBytes, .payload = Floats(16, 1)});
  leaf.AckChunks(2, 1);
  leaf.PassAlive(leaf.session.options().step_timeout + absl::Seconds(1));
  EXPECT_THAT(leaf.Message(), HasSubstr("broadcast 0 waits for rank 3 to take its bytes"));
  leaf.upstream.clear();
  leaf.GoOn({.what = UpstreamProgress::What::kBytes, .payload = Floats(16, 1)});
  EXPECT_THAT(leaf.upstream, IsEmpty()) << "it is over";
}

TEST(SessionLeaf, AMemberIsLostInABroadcast) {
  Leaf leaf;
  leaf.StartLeaf();
  leaf.EnterBroadcast(0, 2, 128);
  leaf.GoOn({});
  leaf.SendChunk(2, 0);
  leaf.Detach(2);
  leaf.Pass(leaf.session.options().resume_grace + absl::Seconds(1));
  EXPECT_THAT(leaf.Message(), HasSubstr("rank 2 was lost"));
  EXPECT_EQ(leaf.session.blamed_rank(), 2);
  EXPECT_EQ(leaf.session.held_bytes(), 0U);
}

TEST(SessionLeaf, WhatEndsTheRootsSessionEndsThisOne) {
  Leaf leaf;
  leaf.StartLeaf();
  leaf.Upstream([&](Effects& effects) {
    leaf.session.FailElsewhere(absl::AbortedError("session \"s\" failed: rank 0 was lost"), 0,
                               effects);
  });
  EXPECT_THAT(leaf.Message(), HasSubstr("session \"s\" failed: rank 0 was lost"));
  EXPECT_EQ(leaf.Sent<wire::Failure>(3).at(0).blamed_rank, 0);
  EXPECT_EQ(leaf.session.blamed_rank(), 0);
}

TEST(SessionLeaf, AllHaveLeftWhenThoseOfTheNodeHave) {
  Leaf leaf;
  leaf.StartLeaf();
  for (const int rank : {2, 3}) EXPECT_TRUE(leaf.Leave(rank).ok());
  EXPECT_EQ(leaf.session.state(), SessionCore::State::kClosed);
}

// PREPARED is for members of several shards.
TEST(SessionLeaf, AMemberMayResumeWhileTheRootConcludesTheStep) {
  Leaf leaf;
  leaf.StartLeaf();
  for (const int rank : {2, 3}) leaf.Announce(rank, {0});
  for (const int rank : {2, 3}) leaf.Contribute(rank, 0, 1.0F);
  leaf.Reduce();
  for (const int rank : {2, 3}) leaf.EndStep(rank);
  ASSERT_THAT(leaf.Wishes(), ElementsAre(What::kEndStep));
  leaf.Detach(2);
  ASSERT_TRUE(leaf.Attach(2).ok());
  EXPECT_THAT(leaf.Sent<wire::Restart>(2), SizeIs(1));
  EXPECT_THAT(leaf.Sent<wire::Prepared>(2), IsEmpty());
  leaf.Conclude(0, Verdict::kSkip);
  EXPECT_THAT(leaf.Sent<wire::StepDone>(2), SizeIs(1));
  EXPECT_EQ(leaf.session.step(), 1);
}

TEST(SessionLeaf, TellsTheRootWhatMostParametersAreAndMembersWhatTheRootSays) {
  Leaf leaf;
  leaf.StartLeaf();
  const auto tell = [&leaf](int rank, std::uint64_t digest) {
    leaf.Receive(rank, wire::ParameterDigest{.step = leaf.session.step(),
                                             .generation = leaf.session.options().generation,
                                             .digest = digest});
  };
  tell(3, 8);
  EXPECT_THAT(leaf.Wishes(), IsEmpty());
  tell(2, 8);
  ASSERT_THAT(leaf.Wishes(), ElementsAre(What::kParameters));
  EXPECT_EQ(leaf.upstream[0].digest, 8U);
  tell(2, 8);  // a resume repeats it
  EXPECT_THAT(leaf.upstream, SizeIs(1));
  for (const int rank : {2, 3}) leaf.EndStep(rank);
  leaf.Conclude(0, Verdict::kSkip, "rank 0 contributed 1 NaN", "others differ");
  const auto told = leaf.Sent<wire::StepDone>(2).back();
  EXPECT_EQ(told.reason, "rank 0 contributed 1 NaN");
  EXPECT_EQ(told.drift, "others differ");
  EXPECT_EQ(leaf.session.progress().last_skip(), "step 0: rank 0 contributed 1 NaN");

  tell(2, 8);
  tell(3, 9);
  EXPECT_THAT(leaf.upstream.back().digest, AllOf(Ne(8U), Ne(9U))) << "the root has to notice it";
  for (const int rank : {2, 3}) leaf.EndStep(rank);
  leaf.Conclude(1, Verdict::kApply, "", "others differ");
  EXPECT_THAT(leaf.Sent<wire::StepDone>(3).back().drift,
              HasSubstr("since a step between 0 and 1: rank 2; rank 3"))
      << "nearer than what the root says";
  EXPECT_EQ(leaf.Sent<wire::StepDone>(3).back().reason, "");
}

// A launcher starts all of a node's processes again, sooner than the leaf knows that they are dead.
TEST(SessionLeaf, EndsAtOnceIfAnotherProcessComesForALostMember) {
  Leaf leaf;
  leaf.StartLeaf();
  JoinAsk ask = leaf.MemberAsk(3);
  ask.start_id = 999;
  EXPECT_EQ(leaf.Join(ask).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(leaf.session.state(), SessionCore::State::kRunning) << "the other one is still there";
  leaf.Detach(3);
  EXPECT_EQ(leaf.Join(ask).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(leaf.Message(), HasSubstr("rank 3 was lost in step 0: its connection closed, and "
                                        "another process has come for its rank"));
  EXPECT_EQ(leaf.session.blamed_rank(), 3);
}

// ---- Members that are lost elsewhere

const wire::MembershipChange kChange{.newcomers = {0, 1}, .root = 2, .collectives = 9};

TEST(SessionLeaf, AllAreNewBehindALeafThatIsNew) {
  Leaf leaf;
  leaf.AttachBoth();
  leaf.Upstream([&](Effects& effects) {
    leaf.session.UpstreamJoined({.step = 41, .change = kChange}, effects);
  });
  for (const int rank : {2, 3}) {
    ASSERT_THAT(leaf.Sent<wire::Welcome>(rank), SizeIs(1));
    const wire::Welcome welcome = leaf.Sent<wire::Welcome>(rank)[0];
    EXPECT_EQ(welcome.step, 41);
    ASSERT_TRUE(welcome.change.has_value());
    EXPECT_THAT(welcome.change->newcomers, ElementsAre(0, 1));
    EXPECT_EQ(welcome.change->root, 2);
    EXPECT_EQ(welcome.change->collectives, 0U) << "of the leaf's own session";
  }
  // The Welcome may be lost with its stream.
  leaf.Detach(3);
  ASSERT_TRUE(leaf.Attach(3).ok());
  EXPECT_EQ(leaf.Sent<wire::Welcome>(3).back().step, 41);
  EXPECT_TRUE(leaf.Sent<wire::Welcome>(3).back().change.has_value());
  leaf.upstream.clear();
  for (const int rank : {2, 3}) leaf.EndStep(rank);
  ASSERT_THAT(leaf.Wishes(), ElementsAre(What::kEndStep));
  EXPECT_EQ(leaf.upstream[0].step, 41);
}

TEST(SessionLeaf, MembersHearOfSuccessorsElsewhereWithTheEndOfTheirStep) {
  Leaf leaf;
  leaf.StartLeaf();
  leaf.EnterBroadcast(0, 2, 0);
  leaf.GoOn({});
  for (const int rank : {2, 3}) leaf.EndStep(rank);
  leaf.Upstream([&](Effects& effects) {
    leaf.session.UpstreamConcluded(
        0, {.verdict = Verdict::kSkip, .reason = "lost", .change = kChange}, leaf.now, effects);
  });
  wire::MembershipChange own = kChange;
  own.collectives = 1;
  for (const int rank : {2, 3}) {
    EXPECT_THAT(leaf.Sent<wire::StepDone>(rank),
                ElementsAre(wire::StepDone{.step = 0,
                                           .verdict = Verdict::kSkip,
                                           .dropped = true,
                                           .change = own,
                                           .reason = "lost"}));
  }
  // The next one is like any other.
  for (const int rank : {2, 3}) leaf.EndStep(rank);
  leaf.Conclude(1, Verdict::kApply);
  EXPECT_FALSE(leaf.Sent<wire::StepDone>(2).back().dropped);
  EXPECT_FALSE(leaf.Sent<wire::StepDone>(2).back().change.has_value());
}

TEST(SessionLeaf, ACollectiveThatTheRootMakesVoidIsSoForAll) {
  Leaf leaf;
  leaf.StartLeaf();
  leaf.EnterBroadcast(0, 4, 96);
  leaf.GoOn({});
  leaf.GoOn({.what = UpstreamProgress::What::kBytes, .payload = Floats(20, 1)});
  leaf.GoOn({.what = UpstreamProgress::What::kVoid});
  for (const int rank : {2, 3}) {
    EXPECT_THAT(leaf.Sent<wire::CollectiveVoid>(rank), ElementsAre(wire::CollectiveVoid{0}));
  }
  EXPECT_EQ(leaf.session.held_bytes(), 0U);
  EXPECT_THAT(leaf.Waiting(), HasSubstr("to begin step 0"));
  for (const int rank : {2, 3}) leaf.AckChunks(rank, 1);  // were on their way
  leaf.Detach(3);
  ASSERT_TRUE(leaf.Attach(3).ok());
  EXPECT_THAT(leaf.Sent<wire::CollectiveVoid>(3), SizeIs(2)) << "it may not have heard";
  EXPECT_THAT(leaf.Sent<wire::CollectiveAck>(3), IsEmpty());
  leaf.upstream.clear();
  leaf.EnterBroadcast(1, 4, 64);
  EXPECT_THAT(leaf.Wishes(), ElementsAre(What::kBroadcast));
}

// One that some members have entered early is void, too: the next has the same number for all.
TEST(SessionLeaf, NoCollectiveStaysOpenOverAChange) {
  Leaf leaf;
  leaf.StartLeaf();
  for (const int rank : {2, 3}) leaf.EndStep(rank);
  leaf.Receive(3,
               wire::Enter{.number = 0, .generation = 7, .kind = wire::CollectiveKind::kBarrier});
  leaf.Upstream([&](Effects& effects) {
    leaf.session.UpstreamConcluded(0, {.verdict = Verdict::kSkip, .change = kChange}, leaf.now,
                                   effects);
  });
  EXPECT_THAT(leaf.Sent<wire::CollectiveVoid>(3), ElementsAre(wire::CollectiveVoid{0}));
  EXPECT_EQ(leaf.Sent<wire::StepDone>(2).back().change->collectives, 1U);
}

}  // namespace
}  // namespace gradwire::server

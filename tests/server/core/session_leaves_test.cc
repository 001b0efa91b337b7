// Leaf daemons at their root, played by hand: each is one member that stands for several ranks.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/server/core/gathering_reports.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Of five ranks, leaf "a" has 0 and 1, leaf "b" 2 and 3, and 4 is a trainer.
class Leaves : public SessionHarness {
 public:
  explicit Leaves(const SessionOptions& options = SmallOptions(5)) : SessionHarness(options) {}

  JoinAsk LeafAsk(int rank, int ranks, const std::string& name) const {
    JoinAsk ask = Ask(rank);
    ask.leaf_ranks = ranks;
    ask.leaf = name;
    return ask;
  }
  void StartLeaves() {
    ASSERT_EQ(*Join(LeafAsk(0, 2, "a")), 0);
    ASSERT_EQ(*Join(LeafAsk(2, 2, "b")), 2);
    ASSERT_EQ(*Join(Ask(4)), 4);
    for (const int rank : {0, 2, 4}) ASSERT_TRUE(Attach(rank).ok());
    ASSERT_EQ(session.state(), SessionCore::State::kRunning);
  }
  void AnnounceFromAll(const std::vector<std::uint32_t>& parameters) {
    for (const int rank : {0, 2, 4}) Announce(rank, parameters);
  }
};

TEST(SessionLeaves, AllRanksAreHereWhenTheLeavesAre) {
  Leaves harness;
  ASSERT_EQ(*harness.Join(harness.LeafAsk(2, 2, "b")), 2);
  ASSERT_TRUE(harness.Attach(2).ok());
  EXPECT_EQ(harness.Waiting(), "waits for ranks 0, 1, 4 of 5 to join");
  EXPECT_EQ(harness.session.member_state(3), MemberState::kElsewhere);
  ASSERT_EQ(*harness.Join(harness.LeafAsk(0, 2, "a")), 0);
  ASSERT_EQ(*harness.Join(harness.Ask(4)), 4);
  ASSERT_TRUE(harness.Attach(0).ok());
  ASSERT_TRUE(harness.Attach(4).ok());
  EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning);
  // Three contribute, so a mean divides by three; each knows how many ranks it stands for.
  EXPECT_EQ(harness.Sent<wire::Welcome>(2).at(0).group,
            (wire::NodeGroup{.ranks = {2}, .shares = 1, .groups = 3, .group = 1}));
  EXPECT_THAT(harness.logged, testing::Contains("leaf \"b\" with ranks 2 to 3 joined"));
}

TEST(SessionLeaves, AMemberThatMissedItsWelcomeLearnsItsGroupFromTheNext) {
  Leaves harness;
  harness.StartLeaves();
  harness.Detach(2);
  ASSERT_TRUE(harness.Attach(2).ok());
  const std::vector<wire::Welcome> welcomes = harness.Sent<wire::Welcome>(2);
  ASSERT_THAT(welcomes, SizeIs(2));
  EXPECT_TRUE(welcomes[1].resumed);
  ASSERT_TRUE(welcomes[1].group.has_value());
  EXPECT_EQ(*welcomes[1].group, *welcomes[0].group);
}

TEST(SessionLeaves, AStepNeedsOneContributionFromEachLeaf) {
  Leaves harness;
  harness.StartLeaves();
  harness.AnnounceFromAll({0});
  for (const int rank : {0, 2, 4}) {
    ASSERT_THAT(harness.Sent<wire::Grant>(rank), SizeIs(1));
    harness.Contribute(rank, 0, 1.0F + static_cast<float>(rank));
  }
  ASSERT_THAT(harness.reductions, SizeIs(1));
  EXPECT_THAT(harness.reductions[0].inputs, SizeIs(3));
  EXPECT_EQ(harness.reductions[0].weight, 3);
  harness.Reduce();
  ASSERT_THAT(harness.Sent<wire::Result>(2), SizeIs(1));
  harness.EndStep(0);
  EXPECT_THAT(harness.Waiting(), HasSubstr("from leaf \"b\" with ranks 2 to 3, rank 4"));
  harness.EndStep(2);
  EXPECT_THAT(harness.Waiting(), HasSubstr("from rank 4"));
  harness.EndStep(4);
  EXPECT_EQ(harness.session.step(), 1) << "nobody waits for the ranks behind leaves";
  EXPECT_THAT(harness.Sent<wire::StepDone>(0), SizeIs(1));
  EXPECT_THAT(harness.Sent<wire::StepDone>(1), SizeIs(0));
  for (const int rank : {0, 2, 4}) EXPECT_TRUE(harness.Leave(rank).ok());
  EXPECT_EQ(harness.session.state(), SessionCore::State::kClosed);
}

TEST(SessionLeaves, ABarrierNeedsTheLeavesOnly) {
  Leaves harness;
  harness.StartLeaves();
  for (int round = 0; round < 2; ++round) {
    const auto number = static_cast<std::uint64_t>(round);
    for (const int rank : {0, 2, 4}) {
      EXPECT_THAT(harness.Sent<wire::Begin>(0), SizeIs(round));
      harness.Receive(
          rank,
          wire::Enter{.number = number, .generation = 7, .kind = wire::CollectiveKind::kBarrier});
    }
    EXPECT_THAT(harness.Sent<wire::Begin>(2), SizeIs(round + 1));
  }
}

// From behind each leaf, and from the trainer.
TEST(SessionLeaves, ALeafTakesPartInBroadcastsForItsMembers) {
  Leaves harness;
  harness.StartLeaves();
  std::uint64_t number = 0;
  for (const auto& [root, sender] :
       std::vector<std::pair<int, int>>{{0, 0}, {1, 0}, {3, 2}, {4, 4}}) {
    for (const int rank : {0, 2, 4}) {
      harness.Receive(rank, wire::Enter{.number = number,
                                        .generation = 7,
                                        .kind = wire::CollectiveKind::kBroadcast,
                                        .root = root,
                                        .bytes = 64});
    }
    harness.frames.clear();
    harness.Receive(sender, wire::CollectiveChunk{.number = number, .chunk = 0}, Floats(16, 1));
    for (const int rank : {0, 2, 4}) {
      if (rank == sender) continue;
      EXPECT_THAT(harness.Sent<wire::CollectiveChunk>(rank), SizeIs(1)) << root;
      harness.Receive(rank, wire::CollectiveAck{.number = number, .received = 1});
    }
    EXPECT_THAT(harness.Sent<wire::CollectiveAck>(sender),
                ElementsAre(wire::CollectiveAck{number, 1}));
    for (const int rank : {1, 3}) EXPECT_THAT(harness.frames[rank], SizeIs(0));
    ++number;
  }
}

TEST(SessionLeaves, ALostLeafIsBlamedByItsName) {
  Leaves harness;
  harness.StartLeaves();
  harness.Detach(2);
  harness.Pass(harness.session.options().resume_grace + absl::Seconds(1));
  EXPECT_THAT(harness.Message(), HasSubstr("leaf \"b\" with ranks 2 to 3 was lost before step 0"));
  EXPECT_EQ(harness.Sent<wire::Failure>(0).at(0).blamed_rank, 2);
}

TEST(SessionLeaves, WhatEndsTheSessionBehindALeafEndsItForAll) {
  Leaves harness;
  harness.StartLeaves();
  harness.Receive(2, wire::Failure{.code = static_cast<int>(absl::StatusCode::kAborted),
                                   .message = "rank 3 was lost in step 0",
                                   .blamed_rank = 3});
  EXPECT_THAT(harness.Message(), HasSubstr("rank 3 was lost in step 0"));
  EXPECT_EQ(harness.Sent<wire::Failure>(4).at(0).blamed_rank, 3);
}

// Its words do: see EndOfLeaf.
TEST(SessionLeaves, WhatALeafPassesOnFromAnotherShardDoesNotBlameIt) {
  Leaves harness;
  harness.StartLeaves();
  const std::string words = "session \"s\" failed: an operator evicted the session [GW300]";
  harness.Receive(2, wire::Failure{.code = static_cast<int>(absl::StatusCode::kAborted),
                                   .message = words,
                                   .blamed_rank = -1});
  EXPECT_EQ(harness.Message(), words);
  EXPECT_EQ(harness.session.blamed_rank(), -1);
}

TEST(EndOfLeafTest, NamesTheLeafAndBlamesItIfItBlamesNobody) {
  const LeafPlace leaf{.first = 2, .members = 2};
  const auto end = [&](const std::string& words, int blamed_rank) {
    return EndOfLeaf(leaf, "b", "s", absl::AbortedError(words), blamed_rank);
  };
  const LeafEnd lost = end("session \"s\" failed: rank 3 was lost in step 0", 3);
  EXPECT_EQ(lost.why,
            absl::AbortedError("leaf \"b\" with ranks 2 to 3: rank 3 was lost in step 0"));
  EXPECT_EQ(lost.blamed_rank, 3);
  EXPECT_EQ(end("session \"s\" failed: evicted", -1).blamed_rank, 2);
  EXPECT_EQ(end("the disk is full", -1).why.message(),
            "leaf \"b\" with ranks 2 to 3: the disk is full");
}

TEST(SessionLeaves, ATrainerCannotSayThatTheSessionFailedElsewhere) {
  Leaves harness;
  harness.StartLeaves();
  harness.Receive(4, wire::Failure{.code = 10, .message = "no", .blamed_rank = 0});
  EXPECT_THAT(harness.Message(), HasSubstr("rank 4: sent a failure"));
}

TEST(SessionLeaves, RanksOfALeafAreTaken) {
  Leaves harness;
  ASSERT_EQ(*harness.Join(harness.LeafAsk(0, 2, "a")), 0);
  EXPECT_EQ(harness.Join(harness.Ask(1)).status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_EQ(*harness.Join(harness.Ask(3)), 3);
  EXPECT_THAT(std::string(harness.Join(harness.LeafAsk(2, 2, "b")).status().message()),
              HasSubstr("leaf \"b\" stands for ranks 2 to 3, but rank 3 is taken"));
  EXPECT_EQ(harness.session.member_state(2), MemberState::kAbsent) << "the refusal left a trace";
  EXPECT_THAT(std::string(harness.Join(harness.LeafAsk(4, 2, "c")).status().message()),
              HasSubstr("leaf.ranks is 2 from rank 4"));
}

TEST(SessionLeaves, ALeafThatIsGoneBeforeTheStartFreesAllItsRanks) {
  Leaves harness;
  ASSERT_EQ(*harness.Join(harness.LeafAsk(0, 3, "a")), 0);
  EXPECT_EQ(harness.session.member_state(2), MemberState::kElsewhere);
  harness.Pass(harness.session.options().token_timeout + absl::Seconds(1));
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(harness.session.member_state(rank), MemberState::kAbsent) << rank;
  }
  EXPECT_EQ(*harness.Join(harness.Ask(1)), 1);
}

// ---- The loss of the root

SessionOptions LongLived(bool gathers) {
  SessionOptions options = SmallOptions(5);
  options.lineage = 5;
  options.coordinator_grace = absl::Seconds(60);
  options.session_key = kKey;
  options.gathers = gathers;
  return options;
}

TEST(SessionLeaves, OutliveTheirRoot) {
  Leaves harness(LongLived(false));
  harness.StartLeaves();
  EXPECT_TRUE(harness.Sent<wire::Welcome>(2).at(0).recovery.has_value());
}

SessionOptions Shrinks(bool gathers) {
  SessionOptions options = LongLived(gathers);
  options.member_grace = absl::Minutes(10);
  options.shrinks_to = 1;
  options.shrink_after = absl::Seconds(2);
  return options;
}

TEST(SessionLeaves, AreInTheRosterWithAllTheirMembers) {
  Leaves harness(Shrinks(false));
  harness.StartLeaves();
  ASSERT_TRUE(harness.Sent<wire::Welcome>(2).at(0).recovery.has_value());
  EXPECT_THAT(harness.Sent<wire::Welcome>(2)[0].recovery->roster->ranks,
              ElementsAre(0, 1, 2, 3, 4));
}

// With weights at each of several daemons.
TEST(SessionLeaves, DoNotOutliveSeveralRootsWhoseSessionsShrink) {
  SessionOptions options = Shrinks(false);
  options.shard.addresses = {"a:1", "b:1"};
  options.shard.map =
      std::make_shared<const ShardMap>(*ShardMap::Make(options.spec, options.manifest.list(), 2));
  Leaves harness(options);
  harness.StartLeaves();
  EXPECT_FALSE(harness.Sent<wire::Welcome>(2).at(0).recovery.has_value());
}

SessionOptions Waits(bool gathers) {
  SessionOptions options = LongLived(gathers);
  options.member_grace = absl::Minutes(10);
  return options;
}

TEST(SessionLeaves, TheOthersGatherWhenALeafIsLost) {
  Leaves harness(Waits(false));
  harness.StartLeaves();
  harness.Detach(2);
  harness.Pass(harness.session.options().resume_grace + absl::Seconds(1));
  EXPECT_TRUE(harness.session.awaits_successor());
  EXPECT_THAT(harness.session.node_groups(), testing::IsEmpty()) << "ranks elsewhere are in none";
  EXPECT_THAT(harness.closed, SizeIs(2));
  EXPECT_THAT(harness.logged,
              testing::Contains(HasSubstr("leaf \"b\" with ranks 2 to 3 was lost before step 0")));
}

// To the root, its node is one member.
TEST(SessionLeaves, ALeafWhoseOwnSessionHasEndedIsLost) {
  Leaves harness(Waits(false));
  harness.StartLeaves();
  harness.Receive(2, wire::Failure{.code = static_cast<int>(absl::StatusCode::kAborted),
                                   .message = "leaf \"b\" with ranks 2 to 3: rank 3 was lost",
                                   .blamed_rank = 3});
  EXPECT_TRUE(harness.session.awaits_successor());
  EXPECT_THAT(harness.Sent<wire::Failure>(0), testing::IsEmpty());
  EXPECT_THAT(harness.logged, testing::Contains(HasSubstr("rank 3 was lost; its place is held")));
}

TEST(SessionLeaves, WhatALeafPassesOnFromAnotherShardEndsASessionThatWaits) {
  Leaves harness(Waits(false));
  harness.StartLeaves();
  harness.Receive(2, wire::Failure{.code = static_cast<int>(absl::StatusCode::kAborted),
                                   .message = "rank 0 sent a chunk twice",
                                   .blamed_rank = 0});
  EXPECT_EQ(harness.session.state(), SessionCore::State::kFailed);
}

class NextRoot : public Leaves {
 public:
  explicit NextRoot(const SessionOptions& options = LongLived(true)) : Leaves(options) {}

  absl::Status Come(JoinAsk ask, const std::optional<Report>& report) {
    ask.report = report;
    const auto rank = Join(ask);
    return rank.ok() ? Attach(*rank, report ? report->step : 0, {.may_miss = true}) : rank.status();
  }
};

TEST(SessionLeaves, AFreshRootWaitsForLeavesAndTrainersOnly) {
  NextRoot root;
  EXPECT_TRUE(root.Come(root.LeafAsk(0, 2, "a"), Ready(4)).ok());
  EXPECT_TRUE(root.Come(root.Ask(4), At(5)).ok());
  EXPECT_EQ(root.Waiting(), "gathers its members: waits for ranks 2, 3 of 5 to come back");
  EXPECT_TRUE(root.Come(root.LeafAsk(2, 2, "b"), Ready(4)).ok());
  EXPECT_EQ(root.session.state(), SessionCore::State::kRunning);
  ASSERT_THAT(root.Sent<wire::StepDone>(2), SizeIs(1));
  EXPECT_EQ(root.Sent<wire::StepDone>(2)[0].verdict, Verdict::kApply);
  EXPECT_EQ(root.Sent<wire::Welcome>(2).at(0).step, 5);
  EXPECT_EQ(root.Sent<wire::Welcome>(2)[0].group,
            (wire::NodeGroup{.ranks = {2}, .shares = 1, .groups = 3, .group = 1}));
}

TEST(SessionLeaves, ALeafMayComeInThePlaceOfALostOne) {
  NextRoot root(Waits(true));
  EXPECT_TRUE(root.Come(root.LeafAsk(2, 2, "b"), std::nullopt).ok());
  EXPECT_TRUE(root.Come(root.LeafAsk(0, 2, "a"), At(4)).ok());
  EXPECT_TRUE(root.Come(root.Ask(4), At(4)).ok());
  ASSERT_EQ(root.session.state(), SessionCore::State::kRunning);
  const wire::MembershipChange change{.newcomers = {2, 3}, .root = 0, .collectives = 1};
  for (const int rank : {0, 4}) {
    ASSERT_THAT(root.Sent<wire::StepDone>(rank), SizeIs(1));
    EXPECT_EQ(root.Sent<wire::StepDone>(rank)[0].change, change) << "all behind it are new";
  }
  EXPECT_EQ(root.Sent<wire::Welcome>(2).at(0).change, change);
  EXPECT_EQ(root.Sent<wire::Welcome>(2)[0].step, 5);
}

TEST(SessionLeaves, ATrainerMayComeInThePlaceOfALostOne) {
  NextRoot root(Waits(true));
  EXPECT_TRUE(root.Come(root.LeafAsk(0, 2, "a"), At(4)).ok());
  EXPECT_TRUE(root.Come(root.LeafAsk(2, 2, "b"), At(4)).ok());
  EXPECT_TRUE(root.Come(root.Ask(4), std::nullopt).ok());
  ASSERT_EQ(root.session.state(), SessionCore::State::kRunning);
  EXPECT_THAT(root.Sent<wire::StepDone>(2).at(0).change->newcomers, ElementsAre(4));
}

// Its stream ends, and its successor comes.
TEST(SessionLeaves, ALeafMayFailWhileMembersGather) {
  NextRoot root(Waits(true));
  EXPECT_TRUE(root.Come(root.LeafAsk(0, 2, "a"), At(4)).ok());
  EXPECT_TRUE(root.Come(root.LeafAsk(2, 2, "b"), At(4)).ok());
  root.Receive(2, wire::Failure{.code = 10, .message = "rank 3 was lost", .blamed_rank = 3});
  root.Detach(2);
  root.Pass(root.session.options().resume_grace + absl::Seconds(1));
  EXPECT_EQ(root.session.state(), SessionCore::State::kJoining);
  EXPECT_TRUE(root.Come(root.LeafAsk(2, 2, "b"), std::nullopt).ok());
  EXPECT_TRUE(root.Come(root.Ask(4), At(4)).ok());
  EXPECT_THAT(root.Sent<wire::StepDone>(0).at(0).change->newcomers, ElementsAre(2, 3));
}

Report InAll(Report report) {
  report.roster = {.number = 1, .ranks = {0, 1, 2, 3, 4}};
  report.concluded = {0, 1, 2, 3, 4};
  report.keeps_gradients = true;
  report.has_leaves = true;
  return report;
}

TEST(SessionLeaves, AllRanksOfALostOneAreGoneForTheNextSession) {
  Leaves harness(Shrinks(false));
  harness.StartLeaves();
  harness.Detach(2);
  harness.Pass(harness.session.options().resume_grace + absl::Seconds(1));
  EXPECT_TRUE(harness.session.awaits_successor());
  EXPECT_THAT(harness.session.gone(), ElementsAre(2, 3));
}

// Of three processes two are left, with three members.
TEST(SessionLeaves, TheOthersGoOnWithoutALostOne) {
  SessionOptions options = Shrinks(true);
  options.gone = {2, 3};
  NextRoot root(options);
  EXPECT_TRUE(root.Come(root.LeafAsk(0, 2, "a"), InAll(Contributed(4, true))).ok());
  EXPECT_TRUE(root.Come(root.Ask(4), InAll(At(4))).ok());
  root.Pass(absl::Milliseconds(250));
  ASSERT_EQ(root.session.state(), SessionCore::State::kRunning) << root.Message();
  for (const int rank : {0, 4}) {
    ASSERT_THAT(root.Sent<wire::StepDone>(rank), SizeIs(1));
    const wire::StepDone done = root.Sent<wire::StepDone>(rank)[0];
    EXPECT_TRUE(done.dropped);
    ASSERT_TRUE(done.change.has_value());
    EXPECT_THAT(done.change->ranks, ElementsAre(0, 1, 4));
    const wire::Welcome welcome = root.Sent<wire::Welcome>(rank).at(0);
    EXPECT_EQ(welcome.group->groups, 2U);
    EXPECT_EQ(welcome.recovery->roster, (wire::Roster{.number = 2, .ranks = {0, 1, 4}}));
  }
  EXPECT_THAT(root.logged, testing::Contains(HasSubstr("goes on with 3 members")));
  EXPECT_EQ(root.session.member_state(3), MemberState::kGone);
}

// And a further one later: it is asked to wait until a step has ended.
TEST(SessionLeaves, ALeafComesForRanksThatAreGone) {
  SessionOptions options = Shrinks(true);
  options.gone = {2, 3};
  NextRoot root(options);
  EXPECT_TRUE(root.Come(root.LeafAsk(0, 2, "a"), InAll(At(4))).ok());
  EXPECT_TRUE(root.Come(root.Ask(4), InAll(At(4))).ok());
  root.Pass(absl::Milliseconds(250));
  ASSERT_EQ(root.session.state(), SessionCore::State::kRunning) << root.Message();
  const absl::Status too_many = root.Join(root.LeafAsk(2, 3, "c")).status();
  EXPECT_THAT(std::string(too_many.message()), HasSubstr("leaf \"c\" stands for rank 4"));
  EXPECT_EQ(root.Join(root.LeafAsk(2, 2, "b")).status().code(), absl::StatusCode::kUnavailable);
}

// Its gradient would get a weight.
TEST(SessionLeaves, NoLeafIsTakenInBesideAMemberOnAGpu) {
  SessionOptions options = Shrinks(true);
  options.gone = {2, 3};
  NextRoot root(options);
  for (const int rank : {0, 1, 4}) {
    JoinAsk ask = root.Ask(rank);
    ask.report = InAll(At(4));
    ASSERT_EQ(*root.Join(ask), rank);
    ASSERT_TRUE(root.Attach(rank, 4, {.may_miss = rank != 1}).ok());
  }
  root.Pass(absl::Milliseconds(250));
  ASSERT_EQ(root.session.state(), SessionCore::State::kRunning) << root.Message();
  EXPECT_THAT(std::string(root.Join(root.LeafAsk(2, 2, "b")).status().message()),
              HasSubstr("rank 1 has them on a GPU"));
  EXPECT_EQ(root.Join(root.Ask(2)).status().code(), absl::StatusCode::kUnavailable);
}

// Nor while members gather: they go on without it.
TEST(SessionLeaves, ALeafIsSentAwayWhereAMemberIsOnAGpu) {
  NextRoot root(Shrinks(true));
  EXPECT_TRUE(root.Come(root.LeafAsk(2, 2, "b"), std::nullopt).ok());
  for (const int rank : {0, 1, 4}) {
    JoinAsk ask = root.Ask(rank);
    ask.report = InAll(At(4));
    ASSERT_EQ(*root.Join(ask), rank);
    ASSERT_TRUE(root.Attach(rank, 4, {.may_miss = rank != 1}).ok());
  }
  EXPECT_THAT(root.Sent<wire::Failure>(2).at(0).message, HasSubstr("rank 1 has them on a GPU"));
  root.Pass(absl::Seconds(15));
  ASSERT_EQ(root.session.state(), SessionCore::State::kRunning) << root.Message();
  EXPECT_THAT(root.Sent<wire::Welcome>(0).at(0).recovery->roster->ranks, ElementsAre(0, 1, 4));
}

// Before the others have begun without it.
TEST(SessionLeaves, ANewLeafIsTakenInWhileTheOthersGather) {
  NextRoot root(Shrinks(true));
  EXPECT_TRUE(root.Come(root.LeafAsk(0, 2, "a"), InAll(At(4))).ok());
  EXPECT_TRUE(root.Come(root.LeafAsk(2, 2, "b"), std::nullopt).ok());
  EXPECT_TRUE(root.Come(root.Ask(4), InAll(At(4))).ok());
  ASSERT_EQ(root.session.state(), SessionCore::State::kRunning) << root.Message();
  const wire::MembershipChange change = *root.Sent<wire::StepDone>(0).at(0).change;
  EXPECT_THAT(change.newcomers, ElementsAre(2, 3));
  EXPECT_THAT(change.ranks, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(root.Sent<wire::Welcome>(2).at(0).change, change);
}

// The others have applied what it lacks.
TEST(SessionLeaves, OneThatIsLeftBehindIsSoWithAllItsMembers) {
  NextRoot root(Shrinks(true));
  Report ahead = InAll(At(6));
  ahead.before_last = Verdict::kApply;
  EXPECT_TRUE(root.Come(root.LeafAsk(0, 2, "a"), ahead).ok());
  EXPECT_TRUE(root.Come(root.LeafAsk(2, 2, "b"), InAll(At(4))).ok());
  EXPECT_TRUE(root.Come(root.Ask(4), ahead).ok());
  ASSERT_EQ(root.session.state(), SessionCore::State::kRunning) << root.Message();
  EXPECT_THAT(root.Sent<wire::Failure>(2).at(0).message, HasSubstr("GW322"));
  EXPECT_THAT(root.Sent<wire::Welcome>(0).at(0).recovery->roster->ranks, ElementsAre(0, 1, 4));
}

TEST(NodeGroupsTest, LeavesAndGroupsOfSeveralAreNotMixed) {
  const std::vector<GroupAsk> asks = {{.name = "", .communicator = "", .ranks = 2},
                                      {.name = "", .communicator = "", .ranks = 0},
                                      {.name = "a", .communicator = "c"},
                                      {.name = "a", .communicator = "c"}};
  EXPECT_THAT(std::string(NodeGroups::Make(asks).status().message()),
              HasSubstr("leaf daemons and node groups of several members"));
}

}  // namespace
}  // namespace gradwire::server

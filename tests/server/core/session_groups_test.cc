// Node groups in the session core, with members that are played by hand. Ranks 0 and 1 are a group,
// and so are 2 and 3, or 2 is alone.
#include <string>
#include <utility>
#include <vector>

#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Groups : public SessionHarness {
 public:
  // By rank, the name of its group.
  explicit Groups(const std::vector<std::string>& names)
      : SessionHarness(SmallOptions(static_cast<int>(names.size()))) {
    for (std::size_t r = 0; r < names.size(); ++r) {
      JoinAsk ask = Ask(static_cast<int>(r));
      ask.group = {.name = names[r], .communicator = "c 1"};
      EXPECT_TRUE(Join(ask).ok());
      EXPECT_TRUE(Attach(static_cast<int>(r)).ok());
    }
    EXPECT_EQ(session.state(), SessionCore::State::kRunning);
  }
  void Have(int rank, const std::vector<std::uint32_t>& parameters) {
    Receive(rank, wire::GroupBucket{session.step(), 7, parameters});
  }
  void AnnounceShare(int rank, const std::vector<std::uint32_t>& parameters, std::uint32_t share) {
    wire::Announce announce = AnnounceOf(parameters);
    announce.share = share;
    Receive(rank, announce);
  }
};

// The session began with groups of three; of one only rank 4 is left.
TEST(NodeGroupsTest, KeepTheirSharesWhereMembersAreGone) {
  std::vector<GroupAsk> asks(6, {"a", "c"});
  for (const std::size_t r : {3UL, 4UL, 5UL}) asks[r].name = "b";
  for (const std::size_t r : {1UL, 3UL, 5UL}) asks[r].gone = true;
  const auto groups = NodeGroups::Make(asks, 3);
  ASSERT_TRUE(groups.ok());
  EXPECT_TRUE(groups->any());
  EXPECT_EQ(groups->PlaceOf(4),
            (wire::NodeGroup{.ranks = {4}, .shares = 3, .groups = 2, .group = 1}));
  const std::vector<std::vector<int>> contributors = {{0, 4}, {0, 4}, {2, 4}};
  for (std::uint32_t share = 0; share < 3; ++share) {
    EXPECT_EQ(groups->contributors(share)->Among({0, 2, 4}), contributors[share]);
  }
  EXPECT_FALSE(NodeGroups::Make(asks, 1)->any()) << "a session that began without groups";
}

TEST(NodeGroupsTest, WithoutNamesEveryMemberContributesEverything) {
  const NodeGroups groups(3);
  EXPECT_FALSE(groups.any());
  EXPECT_EQ(groups.count(), 3);
  EXPECT_EQ(groups.contributors(0)->count(), 3);
}

TEST(NodeGroupsTest, SharesGoRoundInSmallerGroups) {
  const std::vector<GroupAsk> asks = {{"a", "c"}, {"b", "c"}, {"", ""},
                                      {"a", "c"}, {"a", "c"}, {"b", "c"}};
  const auto groups = NodeGroups::Make(asks);
  ASSERT_TRUE(groups.ok());
  EXPECT_EQ(groups->shares(), 3);
  EXPECT_EQ(groups->count(), 3);
  EXPECT_THAT(groups->RanksWith(4), ElementsAre(0, 3, 4));
  EXPECT_THAT(groups->RanksWith(1), ElementsAre(1, 5));
  EXPECT_THAT(groups->RanksWith(2), ElementsAre(2));
  EXPECT_EQ(groups->Name(groups->GroupOf(5)), "ranks 1, 5");
  const std::vector<std::vector<int>> contributors = {{0, 1, 2}, {1, 2, 4}, {2, 3, 5}};
  for (std::uint32_t share = 0; share < 3; ++share) {
    EXPECT_EQ(groups->contributors(share)->Among({0, 1, 2, 3, 4, 5}), contributors[share]);
    EXPECT_EQ(groups->contributors(share)->total_weight(), 3);
  }
  EXPECT_EQ(groups->PlaceOf(5),
            (wire::NodeGroup{.ranks = {1, 5}, .shares = 3, .groups = 3, .group = 1}));
}

TEST(NodeGroupsTest, AGroupNeedsOneCommunicator) {
  const std::vector<GroupAsk> asks = {{"a", "NCCL 2.28.9"}, {"a", "NCCL 2.30.4"}};
  EXPECT_THAT(
      std::string(NodeGroups::Make(asks).status().message()),
      HasSubstr("rank 1 has NCCL 2.30.4 and rank 0 of the same node group has NCCL 2.28.9"));
}

TEST(SessionGroups, TellsEachMemberItsPlace) {
  Groups harness({"a", "a", "b", "b"});
  const auto welcome = harness.Sent<wire::Welcome>(3);
  ASSERT_THAT(welcome, SizeIs(1));
  EXPECT_EQ(welcome[0].group,
            (wire::NodeGroup{.ranks = {2, 3}, .shares = 2, .groups = 2, .group = 1}));
}

TEST(SessionGroups, NamesTheCommunicatorOnceToTheOthersOfTheGroup) {
  Groups harness({"a", "a", "b", "b"});
  harness.Receive(0, wire::GroupId{7, "first"});
  harness.Receive(0, wire::GroupId{7, "second"});  // as after a resume
  EXPECT_THAT(harness.Sent<wire::GroupId>(1), ElementsAre(wire::GroupId{7, "first"}));
  EXPECT_THAT(harness.Sent<wire::GroupId>(0), IsEmpty());
  EXPECT_THAT(harness.Sent<wire::GroupId>(2), IsEmpty());
  harness.Detach(1);
  EXPECT_TRUE(harness.Attach(1).ok());
  EXPECT_THAT(harness.Sent<wire::GroupId>(1), SizeIs(2));
  EXPECT_EQ(harness.Sent<wire::Welcome>(1).back().group->ranks, (std::vector<int>{0, 1}));
}

TEST(SessionGroups, AStepGoesByOrders) {
  Groups harness({"a", "a", "", ""});
  EXPECT_THAT(harness.Waiting(), HasSubstr("to begin step 0"));
  harness.Have(0, {0, 1, 2});
  EXPECT_THAT(harness.Sent<wire::GroupOrder>(0), IsEmpty()) << "rank 1 has not the bucket yet";
  EXPECT_THAT(harness.Waiting(), HasSubstr("waits for rank 1 (connected, last heard just now) to "
                                           "have bucket [w, b, e]"));
  harness.Have(1, {0, 1, 2});
  const wire::GroupOrder exchange{.step = 0, .number = 0, .bucket = 0, .gather = false};
  for (const int rank : {0, 1}) {
    EXPECT_THAT(harness.Sent<wire::GroupOrder>(rank), ElementsAre(exchange));
  }
  EXPECT_THAT(
      harness.Waiting(),
      HasSubstr("step 0 waits for the node groups to announce their shares of bucket [w, b, "
                "e]"));
  // w is share 0, b and e are share 1. Ranks 2 and 3 are alone and have both.
  for (const int rank : {0, 2, 3}) harness.AnnounceShare(rank, {0}, 0);
  for (const int rank : {0, 2, 3}) harness.Contribute(rank, 0, 1.0F);
  harness.Reduce();
  for (const int rank : {0, 2, 3}) EXPECT_THAT(harness.Sent<wire::Result>(rank), SizeIs(1));
  EXPECT_THAT(harness.Sent<wire::Result>(1), IsEmpty()) << "it does not have that share";
  EXPECT_THAT(harness.Sent<wire::GroupOrder>(0), SizeIs(1)) << "a share is missing";
  for (const int rank : {1, 2, 3}) harness.AnnounceShare(rank, {2}, 1);  // without elements
  EXPECT_THAT(harness.Sent<wire::GroupOrder>(0), SizeIs(1)) << "b is missing";
  for (const int rank : {1, 2, 3}) harness.AnnounceShare(rank, {1}, 1);
  for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
    for (const int rank : {1, 2, 3}) {
      harness.Receive(rank, harness.Chunk(rank, 1, chunk), Floats(chunk == 2 ? 8 : 16, 1.0F));
    }
    harness.Reduce();
  }
  const wire::GroupOrder gather{.step = 0, .number = 1, .bucket = 0, .gather = true};
  for (const int rank : {0, 1}) {
    EXPECT_THAT(harness.Sent<wire::GroupOrder>(rank), ElementsAre(exchange, gather));
  }
  for (const int rank : {2, 3}) EXPECT_THAT(harness.Sent<wire::GroupOrder>(rank), IsEmpty());
  for (const int rank : {0, 1, 2, 3}) EXPECT_THAT(harness.Sent<wire::StepDone>(rank), SizeIs(1));
  EXPECT_EQ(harness.Message(), "");
  // A member that did not hear of the step's end gets its orders once more.
  harness.Detach(1);
  EXPECT_TRUE(harness.Attach(1, 0).ok());
  EXPECT_THAT(harness.Sent<wire::GroupOrder>(1), ElementsAre(exchange, gather, exchange, gather));
}

// Groups may exchange a bucket among themselves, which needs no daemon; their shares wait.
TEST(SessionGroups, APauseHoldsTheirShares) {
  Groups harness({"a", "a", "b", "b"});
  ASSERT_TRUE(harness.Pause(absl::Minutes(10)).ok());
  for (const int rank : {0, 1, 2, 3}) harness.Have(rank, {0, 2});
  for (const int rank : {0, 2}) harness.AnnounceShare(rank, {0}, 0);
  for (const int rank : {1, 3}) harness.AnnounceShare(rank, {2}, 1);  // without elements
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_THAT(harness.Sent<wire::GroupOrder>(rank), SizeIs(1)) << "nothing is reduced to gather";
    EXPECT_THAT(harness.Sent<wire::Grant>(rank), IsEmpty());
  }
  ASSERT_TRUE(harness.Unpause().ok());
  for (const int rank : {0, 2}) {
    EXPECT_THAT(harness.Sent<wire::Grant>(rank), SizeIs(1));
    harness.Contribute(rank, 0, 1.0F);
  }
  harness.Reduce();
  for (const int rank : {0, 1, 2, 3}) EXPECT_THAT(harness.Sent<wire::GroupOrder>(rank), SizeIs(2));
  EXPECT_EQ(harness.Message(), "");
}

struct Wrong {
  std::string message;
  std::function<void(Groups&)> act;
};

TEST(SessionGroups, WhatDoesNotFitEndsTheSession) {
  const auto both = [](Groups& g, const std::vector<std::uint32_t>& parameters) {
    for (const int rank : {0, 1}) g.Have(rank, parameters);
  };
  const std::vector<Wrong> wrongs = {
      {"rank 1: named a node group's communicator; allowed: the first member",
       [](Groups& g) {
         g.Receive(1, wire::GroupId{7, "id"});
       }},
      {"rank 2: named a node group's communicator; allowed: the first member",
       [](Groups& g) {
         g.Receive(2, wire::GroupId{7, "id"});
       }},
      {"rank 0: named a communicator of generation 8",
       [](Groups& g) {
         g.Receive(0, wire::GroupId{8, "id"});
       }},
      {"rank 2: sent a bucket of a node group; it is in none", [](Groups& g) { g.Have(2, {0}); }},
      {"rank 0: has a bucket of parameter 3; the manifest has 3",
       [](Groups& g) {
         g.Have(0, {0, 3});
       }},
      {"rank 0: has bucket [w, w] with a parameter twice",
       [](Groups& g) {
         g.Have(0, {0, 0});
       }},
      {"rank 1: has bucket [w] in step 0; another member's is [w, b]",
       [](Groups& g) {
         g.Have(0, {0, 1});
         g.Have(1, {0});
       }},
      {"rank 1: has bucket [b] in step 0, but parameter b is in bucket [w, b] already",
       [](Groups& g) {
         g.Have(0, {0, 1});
         g.Have(1, {1});
       }},
      {"rank 0: has a bucket of step 1; the session is at step 0",
       [](Groups& g) {
         g.Receive(0, wire::GroupBucket{1, 7, {0}});
       }},
      {"rank 0: sent a bucket of its node group of generation 8",
       [](Groups& g) {
         g.Receive(0, wire::GroupBucket{0, 8, {0}});
       }},
      {"rank 0: announced share 2 of bucket [w]; the session has 2",
       [&](Groups& g) {
         both(g, {0});
         g.AnnounceShare(0, {0}, 2);
       }},
      {"rank 0: announced share 1 of bucket [w], which another member of its node group (ranks 0, "
       "1) has",
       [&](Groups& g) {
         both(g, {0});
         g.AnnounceShare(0, {0}, 1);
       }},
      {"rank 0: announced share 0 of bucket [b], which is no part of one bucket of its node group",
       [&](Groups& g) {
         both(g, {0});
         g.AnnounceShare(0, {1}, 0);
       }},
      {"rank 0: announced share 0 of bucket [w] before its node group was told to exchange it",
       [](Groups& g) {
         g.Have(0, {0});
         g.AnnounceShare(0, {0}, 0);
       }},
      {"rank 2: announced bucket [w] as share 1; another member's is share 0",
       [&](Groups& g) {
         both(g, {0});
         g.AnnounceShare(0, {0}, 0);
         g.AnnounceShare(2, {0}, 1);
       }},
      {"rank 1: ended step 0 without bucket [w], which another member has",
       [](Groups& g) {
         g.Have(0, {0});
         g.EndStep(1);
       }},
      {"rank 1: ended step 0 without bucket [w], which another member has",
       [](Groups& g) {
         g.EndStep(1);
         g.Have(0, {0});
       }},
  };
  for (const Wrong& wrong : wrongs) {
    Groups harness({"a", "a", ""});
    wrong.act(harness);
    EXPECT_THAT(harness.Message(), HasSubstr(wrong.message));
  }
}

TEST(SessionGroups, ASessionWithoutGroupsRefusesTheirFrames) {
  for (const wire::Header& header :
       {wire::Header(wire::GroupBucket{0, 7, {0}}), wire::Header(wire::GroupId{7, "id"})}) {
    SessionHarness harness;
    harness.Start();
    harness.Receive(0, header);
    EXPECT_EQ(harness.session.state(), SessionCore::State::kFailed);
  }
}

}  // namespace
}  // namespace gradwire::server

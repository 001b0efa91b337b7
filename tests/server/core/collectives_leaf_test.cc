// Collectives of a leaf daemon, with the root played by hand, and of a root with leaves.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/collectives.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Sends = std::vector<Collectives::Send>;
using wire::CollectiveKind;

constexpr std::size_t kChunk = 64;
constexpr int kUpstream = 4;

wire::Enter Broadcast(std::uint64_t number, int root, std::uint64_t bytes = 160) {
  return {number, 7, CollectiveKind::kBroadcast, root, bytes};
}

template <class T>
std::vector<T> SentTo(const Sends& sends, int rank) {
  std::vector<T> found;
  for (const Collectives::Send& send : sends) {
    const T* header = std::get_if<T>(&send.frame.header);
    if (header != nullptr && std::count(send.ranks.begin(), send.ranks.end(), rank) > 0) {
      found.push_back(*header);
    }
  }
  return found;
}

// A leaf with the ranks 1 and 2 of four; a window of 2.
class LeafCollectives : public testing::Test {
 protected:
  LeafCollectives() {
    collectives_.SetLeaf();
    for (const int rank : {0, 3}) collectives_.SetElsewhere(rank, collectives_.upstream());
  }
  // And the root begins it.
  void EnterBoth(const wire::Enter& enter) {
    for (const int rank : {1, 2}) ASSERT_TRUE(collectives_.OnEnter(rank, enter, sends_).ok());
    collectives_.OnUpstreamBegan(sends_);
  }
  absl::Status Chunk(std::uint32_t chunk, std::size_t floats = 16, int rank = 1) {
    return collectives_.OnChunk(rank, {collectives_.number(), chunk}, Floats(floats, 1), sends_);
  }
  absl::Status Ack(int rank, std::uint32_t received) {
    return collectives_.OnAck(rank, {collectives_.number(), received}, sends_);
  }
  template <class T>
  std::vector<T> Sent(int rank) const {
    return SentTo<T>(sends_, rank);
  }

  Collectives collectives_{4, kChunk, 2};
  Sends sends_;
};

TEST_F(LeafCollectives, ABroadcastBeginsWithTheRoots) {
  ASSERT_TRUE(collectives_.OnEnter(1, Broadcast(0, 1), sends_).ok());
  EXPECT_THAT(sends_, IsEmpty());
  EXPECT_FALSE(collectives_.WaitsForUpstream());
  ASSERT_TRUE(collectives_.OnEnter(2, Broadcast(0, 1), sends_).ok());
  EXPECT_THAT(Sent<wire::Enter>(kUpstream), ElementsAre(Broadcast(0, 1)));
  EXPECT_TRUE(collectives_.WaitsForUpstream());
  EXPECT_EQ(collectives_.WaitingFor(), "broadcast 0 waits for the upstream daemon");
  EXPECT_THAT(Chunk(0).message(), HasSubstr("of which it is not the root")) << "too early";
  collectives_.OnUpstreamBegan(sends_);
  for (const int rank : {1, 2}) EXPECT_THAT(Sent<wire::Begin>(rank), SizeIs(1));
  EXPECT_THAT(Sent<wire::Begin>(kUpstream), IsEmpty());
  collectives_.OnUpstreamBegan(sends_);  // once more than asked for
  EXPECT_THAT(Sent<wire::Begin>(1), SizeIs(1));
}

TEST_F(LeafCollectives, AMembersBroadcastGoesToTheOthersAndUp) {
  EnterBoth(Broadcast(0, 1));
  EXPECT_EQ(collectives_.WaitingFor(), "broadcast 0 waits for rank 1 to send chunk 0 of 3");
  ASSERT_TRUE(Chunk(0).ok());
  ASSERT_TRUE(Chunk(1).ok());
  for (const int rank : {2, kUpstream}) {
    EXPECT_THAT(Sent<wire::CollectiveChunk>(rank), SizeIs(2)) << rank;
  }
  EXPECT_EQ(collectives_.WaitingFor(), "broadcast 0 waits for rank 2 to take its bytes");
  ASSERT_TRUE(Ack(2, 2).ok());
  EXPECT_THAT(Sent<wire::CollectiveAck>(1), IsEmpty()) << "upstream has not taken them";
  EXPECT_TRUE(collectives_.WaitsForUpstream());
  EXPECT_EQ(collectives_.held_bytes(), 128U);
  EXPECT_THAT(Chunk(2, 8).message(), HasSubstr("the window ends at 2"));
  collectives_.OnUpstreamTook(127, sends_);
  EXPECT_THAT(Sent<wire::CollectiveAck>(1), ElementsAre(wire::CollectiveAck{0, 1}));
  collectives_.OnUpstreamTook(128, sends_);
  EXPECT_THAT(Sent<wire::CollectiveAck>(1), SizeIs(2));
  EXPECT_EQ(collectives_.held_bytes(), 0U);
  EXPECT_FALSE(collectives_.WaitsForUpstream()) << collectives_.WaitingFor();
  ASSERT_TRUE(Chunk(2, 8).ok());
  ASSERT_TRUE(Ack(2, 3).ok());
  // The rest is taken when all members of the root's session have it.
  collectives_.OnUpstreamTook(159, sends_);
  EXPECT_EQ(collectives_.WaitingFor(), "broadcast 0 waits for the upstream daemon");
  collectives_.OnUpstreamTook(160, sends_);
  EXPECT_EQ(collectives_.WaitingFor(), "");
  EXPECT_EQ(collectives_.number(), 1U);
  EXPECT_EQ(Sent<wire::CollectiveAck>(1).back().received, 3U);
}

TEST_F(LeafCollectives, ABroadcastFromElsewhereComesInPiecesOfAnySize) {
  EnterBoth(Broadcast(0, 3));
  EXPECT_TRUE(collectives_.WaitsForUpstream());
  collectives_.OnUpstreamBytes(Floats(10, 1), sends_);
  EXPECT_THAT(Sent<wire::CollectiveChunk>(1), IsEmpty());
  EXPECT_EQ(collectives_.held_bytes(), 40U);
  collectives_.OnUpstreamBytes(Floats(24, 1), sends_);
  for (const int rank : {1, 2}) EXPECT_THAT(Sent<wire::CollectiveChunk>(rank), SizeIs(2));
  EXPECT_THAT(Sent<wire::CollectiveChunk>(kUpstream), IsEmpty());
  EXPECT_FALSE(collectives_.WaitsForUpstream());
  EXPECT_THAT(Chunk(2, 8, 1).message(), HasSubstr("of which it is not the root"));
  ASSERT_TRUE(Ack(1, 2).ok());
  EXPECT_EQ(collectives_.WaitingFor(), "broadcast 0 waits for rank 2 to take its bytes");
  ASSERT_TRUE(Ack(2, 1).ok());
  EXPECT_THAT(Sent<wire::CollectiveAck>(kUpstream), ElementsAre(wire::CollectiveAck{0, 1}));
  EXPECT_EQ(collectives_.RoomAfter(1), 128U);
  collectives_.OnUpstreamBytes(Floats(6, 1), sends_);
  for (const int rank : {1, 2}) ASSERT_TRUE(Ack(rank, 3).ok());
  EXPECT_EQ(Sent<wire::CollectiveAck>(kUpstream).back().received, 3U);
  EXPECT_EQ(collectives_.WaitingFor(), "");
  EXPECT_EQ(collectives_.held_bytes(), 0U);
}

// Its window is that of a whole bucket, and a stream's queue holds less.
TEST(LeafCollectivesOfLargeChunks, AreAheadOfMembersByLess) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  Collectives collectives(3, 2 * kMiB, 1024);
  collectives.SetLeaf();
  Sends sends;
  for (const int rank : {0, 1, 2}) {
    ASSERT_TRUE(collectives.OnEnter(rank, Broadcast(0, 0, 10 * kMiB), sends).ok());
  }
  collectives.OnUpstreamBegan(sends);
  const wire::PayloadRef chunk = Floats(kMiB / 2, 1);
  for (const std::uint32_t c : {0U, 1U, 2U, 3U}) {
    ASSERT_TRUE(collectives.OnChunk(0, {0, c}, chunk, sends).ok());
  }
  const int upstream = collectives.upstream();
  for (const int rank : {1, 2, upstream}) {
    EXPECT_THAT(SentTo<wire::CollectiveChunk>(sends, rank), SizeIs(2)) << rank;
  }
  EXPECT_EQ(collectives.held_bytes(), 8 * kMiB);
  collectives.OnUpstreamTook(4 * kMiB, sends);
  ASSERT_TRUE(collectives.OnAck(1, {0, 2}, sends).ok());
  EXPECT_THAT(SentTo<wire::CollectiveChunk>(sends, 1), SizeIs(2));
  ASSERT_TRUE(collectives.OnAck(2, {0, 1}, sends).ok());
  EXPECT_THAT(SentTo<wire::CollectiveChunk>(sends, 1), SizeIs(3));
  EXPECT_EQ(collectives.held_bytes(), 6 * kMiB);
  sends.clear();
  collectives.Resume(2, sends);
  EXPECT_THAT(SentTo<wire::CollectiveChunk>(sends, 2),
              ElementsAre(wire::CollectiveChunk{0, 1}, wire::CollectiveChunk{0, 2}));
}

TEST_F(LeafCollectives, ABroadcastOfNothingEndsWhereItBegins) {
  EnterBoth(Broadcast(0, 1, 0));
  EnterBoth(Broadcast(1, 3, 0));
  EXPECT_EQ(collectives_.number(), 2U);
  EXPECT_THAT(Sent<wire::Begin>(2), SizeIs(2));
}

// No member is the root, so that all may be early.
TEST_F(LeafCollectives, TheNextOneMayBeEnteredEarlyByAll) {
  EnterBoth(Broadcast(0, 3, 64));
  collectives_.OnUpstreamBytes(Floats(16, 1), sends_);
  ASSERT_TRUE(Ack(1, 1).ok());
  ASSERT_TRUE(collectives_.OnEnter(1, Broadcast(1, 1), sends_).ok());
  sends_.clear();
  ASSERT_TRUE(collectives_.OnEnter(2, Broadcast(1, 1), sends_).ok());  // its ack was lost
  ASSERT_THAT(sends_, SizeIs(2));
  EXPECT_THAT(Sent<wire::CollectiveAck>(kUpstream), ElementsAre(wire::CollectiveAck{0, 1}));
  EXPECT_THAT(Sent<wire::Enter>(kUpstream), ElementsAre(Broadcast(1, 1)))
      << "in this order: the last one is over before";
  EXPECT_TRUE(std::holds_alternative<wire::CollectiveAck>(sends_[0].frame.header));
}

// Whoever has all of it may be in the next one.
TEST_F(LeafCollectives, WhatMembersHaveEnteredEarlyIsOpenAfterAVoidOne) {
  EnterBoth(Broadcast(0, 1));
  for (std::uint32_t c = 0; c < 2; ++c) ASSERT_TRUE(Chunk(c).ok());
  ASSERT_TRUE(Ack(2, 2).ok());
  collectives_.OnUpstreamTook(128, sends_);
  ASSERT_TRUE(Chunk(2, 8).ok());
  ASSERT_TRUE(collectives_.OnEnter(2, Broadcast(1, 3), sends_).ok());
  collectives_.OnUpstreamVoid(sends_);
  EXPECT_EQ(collectives_.number(), 1U);
  EXPECT_EQ(collectives_.WaitingFor(), "broadcast 1 waits for rank 1 to enter");
  sends_.clear();
  collectives_.VoidOpen(sends_);
  EXPECT_THAT(Sent<wire::CollectiveVoid>(2), ElementsAre(wire::CollectiveVoid{1}));
  EXPECT_EQ(collectives_.number(), 2U);
  sends_.clear();
  collectives_.OnUpstreamVoid(sends_);
  collectives_.VoidOpen(sends_);
  EXPECT_THAT(sends_, IsEmpty()) << "nothing is open";
  EXPECT_EQ(collectives_.number(), 2U);
}

TEST_F(LeafCollectives, AResumingMemberIsToldWhatItMissed) {
  EnterBoth(Broadcast(0, 3));
  collectives_.OnUpstreamBytes(Floats(32, 1), sends_);
  ASSERT_TRUE(Ack(1, 1).ok());
  sends_.clear();
  collectives_.Resume(1, sends_);
  EXPECT_THAT(Sent<wire::Begin>(1), SizeIs(1));
  EXPECT_THAT(Sent<wire::CollectiveChunk>(1), ElementsAre(wire::CollectiveChunk{0, 1}));
  sends_.clear();
  collectives_.Resume(2, sends_);
  EXPECT_THAT(Sent<wire::CollectiveChunk>(2), SizeIs(2));
}

TEST_F(LeafCollectives, AResumingRootIsToldWhatAllHave) {
  EnterBoth(Broadcast(0, 1));
  ASSERT_TRUE(Chunk(0).ok());
  ASSERT_TRUE(Chunk(1).ok());
  ASSERT_TRUE(Ack(2, 2).ok());
  collectives_.OnUpstreamTook(64, sends_);
  sends_.clear();
  collectives_.Resume(1, sends_);
  EXPECT_THAT(Sent<wire::CollectiveAck>(1), ElementsAre(wire::CollectiveAck{0, 1}));
  ASSERT_TRUE(Chunk(1).ok());
  EXPECT_THAT(Sent<wire::CollectiveChunk>(kUpstream), IsEmpty()) << "it was given them";
}

TEST_F(LeafCollectives, AMemberThatHasAllMayLeave) {
  EnterBoth(Broadcast(0, 3, 64));
  EXPECT_FALSE(collectives_.OnLeave(1, sends_));
  collectives_.OnUpstreamBytes(Floats(16, 1), sends_);
  for (const int rank : {1, 2}) EXPECT_TRUE(collectives_.OnLeave(rank, sends_));
  EXPECT_THAT(Sent<wire::CollectiveAck>(kUpstream), ElementsAre(wire::CollectiveAck{0, 1}));
  EXPECT_EQ(collectives_.WaitingFor(), "");
}

// What the upstream says of a broadcast that is not open has no effect.
TEST_F(LeafCollectives, IgnoresBytesOutsideOfABroadcast) {
  collectives_.OnUpstreamBytes(Floats(16, 1), sends_);
  collectives_.OnUpstreamTook(64, sends_);
  EnterBoth(Broadcast(0, 1));
  sends_.clear();
  collectives_.OnUpstreamBytes(Floats(16, 1), sends_);
  collectives_.OnUpstreamTook(160, sends_);
  EXPECT_THAT(sends_, IsEmpty());
  EXPECT_EQ(collectives_.held_bytes(), 0U);
}

// ---- At the root: rank 0 is a trainer, a leaf has 1 and 2, and the session is without 3.

class RootCollectives : public testing::Test {
 protected:
  RootCollectives() {
    collectives_.SetElsewhere(2, 1);
    collectives_.SetElsewhere(3, -1);
  }

  Collectives collectives_{4, kChunk, 2};
  Sends sends_;
};

TEST_F(RootCollectives, ALeafSendsForItsMember) {
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(collectives_.OnEnter(rank, Broadcast(0, 2, 64), sends_).ok());
  }
  for (const int rank : {0, 1}) EXPECT_THAT(SentTo<wire::Begin>(sends_, rank), SizeIs(1));
  EXPECT_FALSE(collectives_.OnChunk(0, {0, 0}, Floats(16, 1), sends_).ok());
  ASSERT_TRUE(collectives_.OnChunk(1, {0, 0}, Floats(16, 1), sends_).ok());
  EXPECT_THAT(SentTo<wire::CollectiveChunk>(sends_, 0), SizeIs(1));
  EXPECT_THAT(SentTo<wire::CollectiveChunk>(sends_, 1), IsEmpty());
  ASSERT_TRUE(collectives_.OnAck(0, {0, 1}, sends_).ok());
  EXPECT_THAT(SentTo<wire::CollectiveAck>(sends_, 1), ElementsAre(wire::CollectiveAck{0, 1}));
  EXPECT_EQ(collectives_.number(), 1U);
}

TEST_F(RootCollectives, ARankThatIsGoneIsNoRoot) {
  EXPECT_THAT(collectives_.OnEnter(0, Broadcast(0, 3), sends_).message(),
              HasSubstr("broadcast root is 3; allowed: ranks that the session did not go on"));
}

}  // namespace
}  // namespace gradwire::server

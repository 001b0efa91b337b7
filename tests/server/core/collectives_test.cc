#include "server/core/collectives.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

// Three members, window 2; a broadcast of 160 bytes from rank 0 has chunks of 64, 64 and 32.
class CollectivesTest : public testing::Test {
 protected:
  static wire::Enter Broadcast(std::uint64_t number, std::uint64_t bytes = 160, int root = 0) {
    return {number, 7, CollectiveKind::kBroadcast, root, bytes};
  }
  static wire::Enter Barrier(std::uint64_t number) { return {.number = number, .generation = 7}; }

  void EnterAll(const wire::Enter& enter) {
    for (int r = 0; r < 3; ++r) ASSERT_TRUE(collectives_.OnEnter(r, enter, sends_).ok());
  }
  absl::Status Chunk(std::uint32_t chunk, std::size_t floats = 16, int rank = 0) {
    return collectives_.OnChunk(rank, {number_, chunk}, Floats(floats, 1), sends_);
  }
  absl::Status Ack(int rank, std::uint32_t received) {
    return collectives_.OnAck(rank, {number_, received}, sends_);
  }
  template <class T>
  std::vector<T> SentTo(int rank) const {
    std::vector<T> found;
    for (const Collectives::Send& send : sends_) {
      const T* header = std::get_if<T>(&send.frame.header);
      if (header != nullptr && std::count(send.ranks.begin(), send.ranks.end(), rank) > 0) {
        found.push_back(*header);
      }
    }
    return found;
  }

  Collectives collectives_{3, kChunk, 2};
  Sends sends_;
  std::uint64_t number_ = 0;
};

TEST_F(CollectivesTest, ABarrierOpensWhenEverybodyIsThere) {
  EXPECT_EQ(collectives_.WaitingFor(), "");
  ASSERT_TRUE(collectives_.OnEnter(2, Barrier(0), sends_).ok());
  ASSERT_TRUE(collectives_.OnEnter(2, Barrier(0), sends_).ok());  // after a resume
  EXPECT_EQ(collectives_.WaitingFor(), "barrier 0 waits for ranks 0, 1 to enter");
  ASSERT_TRUE(collectives_.OnEnter(0, Barrier(0), sends_).ok());
  EXPECT_THAT(sends_, IsEmpty());
  ASSERT_TRUE(collectives_.OnEnter(1, Barrier(0), sends_).ok());
  for (int r = 0; r < 3; ++r) EXPECT_THAT(SentTo<wire::Begin>(r), SizeIs(1));
  EXPECT_EQ(collectives_.WaitingFor(), "");
  EXPECT_EQ(collectives_.number(), 1U);
}

TEST_F(CollectivesTest, ABroadcastPassesChunksOnWithinTheWindow) {
  EnterAll(Broadcast(0));
  ASSERT_TRUE(Chunk(0).ok());
  ASSERT_TRUE(Chunk(1).ok());
  EXPECT_EQ(collectives_.held_bytes(), 128U);
  for (int r : {1, 2}) EXPECT_THAT(SentTo<wire::CollectiveChunk>(r), SizeIs(2));
  EXPECT_THAT(SentTo<wire::CollectiveChunk>(0), IsEmpty());
  EXPECT_EQ(collectives_.WaitingFor(), "broadcast 0 waits for ranks 1, 2 to take its bytes");
  ASSERT_TRUE(Ack(1, 2).ok());
  EXPECT_THAT(SentTo<wire::CollectiveAck>(0), IsEmpty());
  EXPECT_EQ(collectives_.WaitingFor(), "broadcast 0 waits for rank 2 to take its bytes");
  ASSERT_TRUE(Ack(2, 2).ok());
  EXPECT_THAT(SentTo<wire::CollectiveAck>(0), ElementsAre(wire::CollectiveAck{0, 2}));
  EXPECT_EQ(collectives_.held_bytes(), 0U);
  EXPECT_EQ(collectives_.WaitingFor(), "broadcast 0 waits for rank 0 to send chunk 2 of 3");
  ASSERT_TRUE(Chunk(2, 8).ok());
  for (int r : {1, 2}) ASSERT_TRUE(Ack(r, 3).ok());
  EXPECT_EQ(collectives_.WaitingFor(), "");
}

TEST_F(CollectivesTest, ABroadcastOfNothingEndsAtOnce) {
  EnterAll(Broadcast(0, 0));
  EXPECT_EQ(collectives_.WaitingFor(), "");
}

TEST(CollectivesAlone, ABroadcastToNobodyIsAcknowledged) {
  Collectives alone(1, kChunk, 1);
  Sends sends;
  ASSERT_TRUE(alone.OnEnter(0, {0, 7, CollectiveKind::kBroadcast, 0, 128}, sends).ok());
  for (std::uint32_t c : {0U, 1U}) {
    ASSERT_TRUE(alone.OnChunk(0, {0, c}, Floats(16, 1), sends).ok());
  }
  EXPECT_EQ(std::get<wire::CollectiveAck>(sends.back().frame.header).received, 2U);
  EXPECT_EQ(alone.WaitingFor(), "");
  EXPECT_EQ(alone.held_bytes(), 0U);
}

// A member that has everything goes on while another still takes its bytes.
TEST_F(CollectivesTest, TheNextOneMayBeEnteredEarly) {
  EnterAll(Broadcast(0, 64));
  ASSERT_TRUE(Chunk(0).ok());
  ASSERT_TRUE(Ack(1, 1).ok());
  ASSERT_TRUE(collectives_.OnEnter(1, Barrier(1), sends_).ok());
  ASSERT_TRUE(collectives_.OnEnter(1, Barrier(1), sends_).ok());
  EXPECT_EQ(collectives_.number(), 0U);
  ASSERT_TRUE(Ack(2, 1).ok());
  EXPECT_EQ(collectives_.WaitingFor(), "barrier 1 waits for ranks 0, 2 to enter");
}

// Its acknowledgement was lost with its stream.
TEST_F(CollectivesTest, EnteringTheNextOneAcknowledgesThisOne) {
  EnterAll(Broadcast(0, 64));
  ASSERT_TRUE(Chunk(0).ok());
  ASSERT_TRUE(Ack(2, 1).ok());
  ASSERT_TRUE(collectives_.OnEnter(1, Barrier(1), sends_).ok());
  EXPECT_EQ(collectives_.number(), 1U);
  EXPECT_THAT(SentTo<wire::CollectiveAck>(0), ElementsAre(wire::CollectiveAck{0, 1}));
}

TEST_F(CollectivesTest, AnEarlyEntryMustFitTheOthers) {
  EnterAll(Broadcast(0, 64));
  ASSERT_TRUE(Chunk(0).ok());
  ASSERT_TRUE(collectives_.OnEnter(1, Barrier(1), sends_).ok());
  EXPECT_EQ(collectives_.OnEnter(2, Broadcast(1, 8), sends_).message(),
            "entered a broadcast of 8 bytes from rank 0 as collective 1; other members entered a "
            "barrier [GW314]");
}

TEST_F(CollectivesTest, NamesWhatIsWrongWithAnEntry) {
  EXPECT_THAT(collectives_.OnEnter(0, Broadcast(0, 8, 3), sends_).message(),
              HasSubstr("broadcast root is 3; allowed are 0 to 2"));
  EXPECT_THAT(collectives_.OnEnter(0, Broadcast(0, std::uint64_t{1} << 41), sends_).message(),
              HasSubstr("broadcast of 2199023255552 bytes"));
  EXPECT_THAT(collectives_.OnEnter(0, {0, 7, CollectiveKind::kBarrier, 0, 5}, sends_).message(),
              HasSubstr("barrier of 5 bytes; allowed: 0"));
  EXPECT_THAT(collectives_.OnEnter(0, Barrier(1), sends_).message(),
              HasSubstr("entered collective 1 while 0 is not finished"));
  ASSERT_TRUE(collectives_.OnEnter(0, Broadcast(0, 8), sends_).ok());
  EXPECT_THAT(collectives_.OnEnter(1, Broadcast(0, 9), sends_).message(),
              HasSubstr("entered a broadcast of 9 bytes from rank 0 as collective 0; other members "
                        "entered a broadcast of 8 bytes"));
}

TEST_F(CollectivesTest, NamesWhatIsWrongWithAChunk) {
  EXPECT_THAT(Chunk(0).message(), HasSubstr("of which it is not the root"));
  EnterAll(Broadcast(0));
  EXPECT_THAT(Chunk(0, 16, 1).message(), HasSubstr("of which it is not the root"));
  EXPECT_THAT(Chunk(1).message(),
              HasSubstr("sent chunk 1 of a broadcast with 3 chunks; expected 0"));
  EXPECT_THAT(Chunk(0, 15).message(), HasSubstr("sent 60 bytes as chunk 0 of a broadcast"));
  ASSERT_TRUE(Chunk(0).ok());
  ASSERT_TRUE(Chunk(0).ok());  // repeated after a resume
  ASSERT_TRUE(Chunk(1).ok());
  EXPECT_THAT(Chunk(2, 8).message(), HasSubstr("the window ends at 2"));
  EXPECT_THAT(Ack(1, 3).message(),
              HasSubstr("acknowledged 3 chunks of collective 0; it was sent 2"));
  number_ = 1;
  EXPECT_FALSE(Ack(1, 1).ok());
  EXPECT_FALSE(Chunk(0).ok());
}

TEST_F(CollectivesTest, AResumingMemberIsToldWhatItMissed) {
  EnterAll(Broadcast(0));
  ASSERT_TRUE(Chunk(0).ok());
  ASSERT_TRUE(Chunk(1).ok());
  ASSERT_TRUE(Ack(1, 1).ok());
  sends_.clear();
  collectives_.Resume(1, sends_);
  EXPECT_THAT(SentTo<wire::Begin>(1), ElementsAre(wire::Begin{0}));
  EXPECT_THAT(SentTo<wire::CollectiveChunk>(1), ElementsAre(wire::CollectiveChunk{0, 1}));
  sends_.clear();
  collectives_.Resume(0, sends_);
  EXPECT_THAT(SentTo<wire::CollectiveAck>(0), ElementsAre(wire::CollectiveAck{0, 0}));
}

TEST_F(CollectivesTest, AResumingMemberIsToldOfTheLastEnd) {
  EnterAll(Barrier(0));
  sends_.clear();
  collectives_.Resume(2, sends_);
  EXPECT_THAT(SentTo<wire::Begin>(2), ElementsAre(wire::Begin{0}));
}

}  // namespace
}  // namespace gradwire::server

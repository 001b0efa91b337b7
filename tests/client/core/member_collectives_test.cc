#include "client/core/member_collectives.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kBroadcast = wire::CollectiveKind::kBroadcast;
constexpr auto kBarrier = wire::CollectiveKind::kBarrier;

// Of rank 1 of two; chunks of 64 bytes, a window of 2.
class MemberCollectivesTest : public EffectsTest {
 protected:
  absl::StatusOr<std::uint64_t> Enter(wire::CollectiveKind kind, int root, std::size_t bytes) {
    Effects effects;
    auto number = collectives_.Enter(kind, root, bytes, effects);
    Take(std::move(effects));
    return number;
  }
  template <typename Header>
  void Receive(const Header& header) {
    Effects effects;
    collectives_.On(header, effects);
    Take(std::move(effects));
  }
  absl::Status Chunk(std::uint64_t number, std::uint32_t chunk, std::size_t bytes) {
    Effects effects;
    absl::Status status =
        collectives_.On(wire::CollectiveChunk{number, chunk}, Bytes(bytes), effects);
    Take(std::move(effects));
    return status;
  }

  MemberCollectives collectives_{options_};
};

TEST_F(MemberCollectivesTest, SendsABroadcastInTheWindow) {
  ASSERT_EQ(*Enter(kBroadcast, 1, 160), 0U);
  EXPECT_FALSE(Enter(kBarrier, 0, 0).ok());
  Receive(wire::Begin{0});
  EXPECT_THAT(Drain<SendCollectiveEffect>(), SizeIs(2));
  Receive(wire::CollectiveAck{0, 1});
  const auto last = Drain<SendCollectiveEffect>();
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_EQ(last[0].offset, 128U);
  EXPECT_EQ(last[0].bytes, 32U);
  Receive(wire::CollectiveAck{0, 3});
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), SizeIs(1));
}

TEST_F(MemberCollectivesTest, AcknowledgesAnEndedBroadcastAgain) {
  ASSERT_TRUE(Enter(kBroadcast, 0, 10).ok());
  Receive(wire::Begin{0});
  ASSERT_TRUE(Chunk(0, 0, 10).ok());
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), SizeIs(1));
  ASSERT_TRUE(Chunk(0, 0, 10).ok());
  EXPECT_THAT(DrainSent<wire::CollectiveAck>(), ElementsAre(wire::CollectiveAck{0, 1}));
  ASSERT_TRUE(Enter(kBarrier, 0, 0).ok());
  ASSERT_TRUE(Chunk(0, 0, 10).ok());
  EXPECT_THAT(DrainSent<wire::CollectiveAck>(), ElementsAre(wire::CollectiveAck{0, 1}));
}

TEST_F(MemberCollectivesTest, ABarrierEndsWhereItBegins) {
  ASSERT_TRUE(Enter(kBarrier, 0, 0).ok());
  Receive(wire::Begin{1});  // not this one
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), IsEmpty());
  Receive(wire::Begin{0});
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), SizeIs(1));
}

TEST_F(MemberCollectivesTest, ANewStreamEntersAgainAndSendsWhatNotEverybodyHas) {
  ASSERT_TRUE(Enter(kBroadcast, 1, 160).ok());
  Receive(wire::Begin{0});
  Receive(wire::CollectiveAck{0, 1});
  Drain<SendFrameEffect>();
  Effects effects;
  collectives_.Resumed(effects);
  Take(std::move(effects));
  EXPECT_THAT(DrainSent<wire::Enter>(), SizeIs(1));
  Receive(wire::Begin{0});
  const auto again = Drain<SendCollectiveEffect>();
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_EQ(again[0].header.chunk, 1U);
}

TEST_F(MemberCollectivesTest, NamesWhatACoordinatorMayNotSend) {
  ASSERT_TRUE(Enter(kBroadcast, 0, 100).ok());
  EXPECT_THAT(Chunk(0, 1, 36).message(), HasSubstr("sent chunk 1 of broadcast 0 out of order"));
  EXPECT_THAT(Chunk(0, 0, 60).message(),
              HasSubstr("sent chunk 0 of broadcast 0 with 60 bytes; it has 64"));
  EXPECT_THAT(Drain<ReceiveCollectiveEffect>(), IsEmpty());
}

TEST_F(MemberCollectivesTest, TheRootMustBeAMember) {
  EXPECT_THAT(Enter(kBroadcast, 2, 1).status().message(),
              HasSubstr("root is 2; allowed are 0 to 1"));
  EXPECT_THAT(Enter(kBroadcast, -1, 1).status().message(), HasSubstr("root is -1"));
}

}  // namespace
}  // namespace gradwire::client

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

// ---- Broadcasts that pass through the client of a leaf with the ranks 1 and 2 of four

MemberOptions OptionsOfLeaf() {
  MemberOptions options = SmallOptions();
  options.ranks = 2;
  options.world_size = 4;
  return options;
}

class RelayTest : public EffectsTest {
 protected:
  RelayTest() : EffectsTest(OptionsOfLeaf()) {}

  template <typename Event>
  void Do(Event event) {
    Effects effects;
    event(effects);
    Take(std::move(effects));
  }
  void Enter(int root, std::size_t bytes, std::uint64_t room = 64) {
    Do([&](Effects& effects) {
      ASSERT_TRUE(collectives_.Enter(kBroadcast, root, bytes, effects).ok());
    });
    collectives_.BeginRelay(room);
  }
  void Begin(std::uint64_t number = 0) {
    Do([&](Effects& effects) { collectives_.On(wire::Begin{number}, effects); });
  }
  void Give(std::uint64_t bytes) {
    Do([&](Effects& effects) { collectives_.Give(bytes, effects); });
  }
  void MakeRoom(std::uint64_t bytes) {
    Do([&](Effects& effects) { collectives_.MakeRoom(bytes, effects); });
  }
  void Ack(std::uint32_t received) {
    Do([&](Effects& effects) { collectives_.On(wire::CollectiveAck{0, received}, effects); });
  }
  void Chunk(std::uint32_t chunk, std::size_t bytes = 64) {
    Do([&](Effects& effects) {
      ASSERT_TRUE(collectives_.On(wire::CollectiveChunk{0, chunk}, Bytes(bytes), effects).ok());
    });
  }
  // As EffectsTest's; effects of other kinds stay.
  template <class T>
  std::vector<T> Drain() {
    std::vector<T> found;
    std::erase_if(effects_, [&found](const Effect& effect) {
      const T* one = std::get_if<T>(&effect);
      if (one != nullptr) found.push_back(*one);
      return one != nullptr;
    });
    return found;
  }
  // The last effect.
  RelayTakenEffect Taken() {
    const auto all = Drain<RelayTakenEffect>();
    return all.empty() ? RelayTakenEffect{.kept_from = 99, .taken = 99} : all.back();
  }
  // What the last acknowledgement says; 99: there is none.
  std::uint32_t Acknowledged() {
    std::uint32_t last = 99;
    for (const SendFrameEffect& sent : Drain<SendFrameEffect>()) {
      const auto* ack = std::get_if<wire::CollectiveAck>(&sent.header);
      if (ack != nullptr) last = ack->received;
    }
    return last;
  }

  MemberCollectives collectives_{options_};
};

TEST_F(RelayTest, SendsWhatItWasGivenForARankThatItStandsFor) {
  Enter(/*root=*/2, 300);
  Begin();
  EXPECT_THAT(Drain<RelayBegunEffect>(), SizeIs(1));
  Give(40);
  EXPECT_THAT(Drain<SendCollectiveEffect>(), IsEmpty()) << "less than a chunk";
  EXPECT_EQ(Taken().taken, 40U) << "the giver may have no room for a chunk";
  Give(40);
  ASSERT_THAT(Drain<SendCollectiveEffect>(), SizeIs(1));
  Give(220);
  const auto second = Drain<SendCollectiveEffect>();
  ASSERT_THAT(second, SizeIs(1)) << "the window ends";
  EXPECT_EQ(second[0].offset, 64U);
  EXPECT_EQ(Taken().taken, 64U);
  Ack(1);
  EXPECT_THAT(Drain<SendCollectiveEffect>(), SizeIs(1));
  const RelayTakenEffect taken = Taken();
  EXPECT_EQ(taken.taken, 128U);
  EXPECT_EQ(taken.kept_from, 64U);
  Ack(3);
  EXPECT_THAT(Drain<SendCollectiveEffect>(), SizeIs(2));
  Ack(4);
  EXPECT_EQ(Taken().taken, 299U) << "not all members have all";
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), IsEmpty());
  Ack(5);
  EXPECT_EQ(Taken().taken, 300U);
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), SizeIs(1));
  EXPECT_THAT(Drain<RelayBegunEffect>(), IsEmpty());
}

TEST_F(RelayTest, AcknowledgesWhatThereIsRoomFor) {
  Enter(/*root=*/3, 160, /*room=*/100);
  Begin();
  Chunk(0);
  EXPECT_EQ(Acknowledged(), 1U);
  Chunk(1);
  EXPECT_EQ(Acknowledged(), 1U);
  MakeRoom(127);
  EXPECT_EQ(Acknowledged(), 99U) << "still not for the whole chunk";
  MakeRoom(128);
  EXPECT_EQ(Acknowledged(), 2U);
  MakeRoom(64);
  Chunk(2, 32);
  EXPECT_EQ(Acknowledged(), 2U);
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), IsEmpty());
  EXPECT_THAT(Drain<ReceiveCollectiveEffect>(), SizeIs(3));
  MakeRoom(192);
  EXPECT_EQ(Acknowledged(), 3U);
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), SizeIs(1));
  MakeRoom(256);  // nothing is open
  EXPECT_EQ(Acknowledged(), 99U);
}

// The next collective may be entered at once, so that this one has to be over.
TEST_F(RelayTest, EndsBetweenTwoStreams) {
  Enter(/*root=*/0, 128);
  Begin();
  Chunk(0);
  Chunk(1);
  EXPECT_EQ(Acknowledged(), 1U);
  Do([&](Effects& effects) { collectives_.Resumed(effects); });
  MakeRoom(256);
  EXPECT_EQ(Acknowledged(), 2U);
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), SizeIs(1));
  Begin();
  Chunk(1);
  EXPECT_EQ(Acknowledged(), 2U) << "the last one was lost";
  EXPECT_THAT(Drain<ReceiveCollectiveEffect>(), SizeIs(2)) << "each once";
  EXPECT_THAT(Drain<RelayBegunEffect>(), SizeIs(1));
}

TEST_F(RelayTest, ANewStreamSendsAgainWhatNotEverybodyHas) {
  Enter(/*root=*/1, 300);
  Begin();
  Give(300);
  Ack(1);
  Drain<SendCollectiveEffect>();
  Do([&](Effects& effects) { collectives_.Resumed(effects); });
  Give(0);
  EXPECT_THAT(Drain<SendCollectiveEffect>(), IsEmpty());
  Begin();
  const auto again = Drain<SendCollectiveEffect>();
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_EQ(again[0].offset, 64U);
}

// It sends everything again, and the members behind the leaf have a part of it.
TEST_F(RelayTest, AnotherDaemonsBytesComeOnce) {
  Enter(/*root=*/0, 160, /*room=*/64);
  Begin();
  Chunk(0);
  Chunk(1);
  collectives_.BeginAnew();
  Do([&](Effects& effects) { collectives_.Resumed(effects); });
  EXPECT_TRUE(collectives_.CheckWhole().ok());
  Begin();
  Drain<SendFrameEffect>();
  for (const std::uint32_t chunk : {0U, 1U}) Chunk(chunk);
  EXPECT_EQ(Acknowledged(), 1U);
  Chunk(2, 32);
  EXPECT_THAT(Drain<ReceiveCollectiveEffect>(), SizeIs(3));
  MakeRoom(192);
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), SizeIs(1));
}

TEST_F(RelayTest, AnotherDaemonCannotHaveBytesThatAreGone) {
  Enter(/*root=*/1, 300);
  Begin();
  Give(200);
  collectives_.BeginAnew();
  EXPECT_TRUE(collectives_.CheckWhole().ok()) << "nothing is gone";
  Begin();
  Ack(1);
  collectives_.BeginAnew();
  collectives_.BeginAnew();
  EXPECT_THAT(collectives_.CheckWhole().message(), HasSubstr("lost after 1 of 5 chunks"));
}

TEST_F(RelayTest, ABroadcastOfNothingEndsWhereItBegins) {
  for (const int root : {1, 3}) {
    Enter(root, 0);
    Begin(root == 1 ? 0 : 1);
    EXPECT_THAT(Drain<RelayBegunEffect>(), SizeIs(1));
    EXPECT_THAT(Drain<CollectiveDoneEffect>(), SizeIs(1));
  }
}

TEST_F(MemberCollectivesTest, ALeafMayMakeACollectiveVoid) {
  ASSERT_EQ(*Enter(kBroadcast, 0, 160), 0U);
  Receive(wire::Begin{0});
  ASSERT_TRUE(Chunk(0, 0, 64).ok());
  Receive(wire::CollectiveVoid{0});
  const auto done = Drain<CollectiveDoneEffect>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].number, 0U);
  EXPECT_THAT(std::string(done[0].status.message()), HasSubstr("[GW320]"));
  EXPECT_TRUE(Chunk(0, 1, 64).ok()) << "was on its way";
  ASSERT_EQ(*Enter(kBarrier, 0, 0), 1U);
  Receive(wire::CollectiveVoid{0});  // repeated after a resume
  EXPECT_TRUE(collectives_.is_open());
}

}  // namespace
}  // namespace gradwire::client

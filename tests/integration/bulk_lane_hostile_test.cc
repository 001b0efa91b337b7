// Bulk lanes that no SDK would open, and frames that wait for each other in vain.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/raw_member.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RawMember;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kPair = 77;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class HostileLane : public ::testing::Test {
 protected:
  ClientOptions Options(int rank, int world_size, const std::string& session = "s") const {
    return {.address = daemon_.address(),
            .session = session,
            .rank = rank,
            .world_size = world_size,
            .parameters = {MakeParameter("w", 1000)}};
  }

  // The Hello of a member that joins as `options` say.
  v1::Frame Hello(const ClientOptions& options, std::uint64_t pair = kPair) {
    const v1::JoinRequest request = RawMember::MakeJoin(options);
    const auto joined = RawMember(daemon_.address()).Join(request);
    EXPECT_TRUE(joined.ok()) << joined.status();
    EXPECT_TRUE(joined->bulk_lane());
    v1::Frame frame;
    v1::Hello& hello = *frame.mutable_header()->mutable_hello();
    hello.set_token(joined->token());
    hello.set_start_id(request.start_id());
    hello.set_pair(pair);
    return frame;
  }

  // How the daemon ends a lane whose first frame this is.
  absl::Status EndOfLane(const v1::Frame& first) {
    RawMember lane(daemon_.address());
    lane.OpenBulk();
    lane.Send(first);
    EXPECT_FALSE(lane.Read().has_value());
    return lane.Finish();
  }

  void TearDown() override {
    ExpectAllOk(RunRanks(Options(-1, 2, "afterwards"),
                         [](Client& client, int) { return client.Barrier(); }));
  }

  TestDaemon daemon_{{.hello_timeout = absl::Milliseconds(300),
                      .resume_grace = absl::Milliseconds(300),
                      .heartbeat_interval = absl::Milliseconds(100),
                      .silence_timeout = absl::Milliseconds(800)}};
};

TEST_F(HostileLane, BeginsWithAHelloThatNamesAKnownTokenAndAPair) {
  v1::Frame heartbeat;
  heartbeat.mutable_header()->mutable_heartbeat();
  EXPECT_EQ(EndOfLane(heartbeat).code(), absl::StatusCode::kInvalidArgument);
  const absl::Status unpaired = EndOfLane(Hello(Options(0, 2), 0));
  EXPECT_EQ(unpaired.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(unpaired), HasSubstr("hello.pair is 0"));
  v1::Frame guess = Hello(Options(1, 2));
  guess.mutable_header()->mutable_hello()->set_token("guess");
  EXPECT_EQ(EndOfLane(guess).code(), absl::StatusCode::kNotFound);
}

TEST_F(HostileLane, WithoutAStreamItEnds) {
  const absl::Status status = EndOfLane(Hello(Options(0, 2)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(status), HasSubstr("no Exchange of the same pair, within 300ms"));
}

TEST_F(HostileLane, AStreamWaitsForItsOwnMembersLaneOnly) {
  const v1::Frame first = Hello(Options(0, 2));
  const v1::Frame second = Hello(Options(1, 2));
  RawMember stream(daemon_.address());
  stream.OpenStream();
  ASSERT_TRUE(stream.Send(first));
  EXPECT_EQ(EndOfLane(second).code(), absl::StatusCode::kDeadlineExceeded);
  while (stream.Read().has_value()) {
  }
  const absl::Status status = stream.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), HasSubstr("bulk lane, which did not come within 300ms"));
}

// A session of one, with its two lanes.
class HostileMember : public HostileLane {
 protected:
  void SetUp() override {
    const v1::Frame hello = Hello(Options(0, 1));
    lane_.OpenBulk();
    ASSERT_TRUE(lane_.Send(hello));
    stream_.OpenStream();
    ASSERT_TRUE(stream_.Send(hello));
    ASSERT_TRUE(lane_.ReadUntil(v1::Header::kHeartbeat).has_value()) << "the lane's greeting";
    ASSERT_TRUE(stream_.ReadUntil(v1::Header::kWelcome).has_value());
  }

  static v1::Frame Heartbeat(std::uint64_t after) {
    v1::Frame frame;
    frame.mutable_header()->mutable_heartbeat();
    frame.set_after(after);
    return frame;
  }
  static v1::Frame Enter(std::uint64_t after) {
    v1::Frame frame;
    v1::Enter& enter = *frame.mutable_header()->mutable_enter();
    enter.set_generation(1);
    enter.set_kind(v1::COLLECTIVE_KIND_BARRIER);
    frame.set_after(after);
    return frame;
  }

  RawMember stream_{daemon_.address()};
  RawMember lane_{daemon_.address()};
};

TEST_F(HostileMember, AFrameIsTakenAfterThoseOfTheOtherLaneThatItNames) {
  ASSERT_TRUE(stream_.Send(Enter(2)));
  ASSERT_TRUE(lane_.Send(Heartbeat(0)));
  for (int heartbeats = 0; heartbeats < 3; ++heartbeats) {
    const auto frame = stream_.Read();
    ASSERT_TRUE(frame && frame->header().has_heartbeat());
  }
  ASSERT_TRUE(lane_.Send(Heartbeat(0)));
  EXPECT_TRUE(stream_.ReadUntil(v1::Header::kBegin).has_value());
}

TEST_F(HostileMember, LanesThatWaitForEachOtherAreSilence) {
  ASSERT_TRUE(stream_.Send(Enter(1'000'000)));
  ASSERT_TRUE(lane_.Send(Heartbeat(1'000'000)));
  const absl::Status status = stream_.AwaitFailure();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 0"), HasSubstr("nothing was heard from it")));
}

TEST_F(HostileMember, WhatComesOnItsLaneIsNotHeardOnItsStream) {
  while (stream_.Read().has_value()) lane_.Send(Heartbeat(0));
  const absl::Status status = stream_.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), HasSubstr("nothing came on the stream for 1.6s"));
}

TEST_F(HostileMember, BytesThatAreNoFrameEndTheSessionOnEitherLane) {
  v1::Frame huge;
  huge.mutable_header()->mutable_contribution();
  ASSERT_TRUE(lane_.Send(huge));
  const absl::Status status = stream_.AwaitFailure();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("rank 0"));
  EXPECT_FALSE(lane_.Read().has_value());
}

TEST_F(HostileMember, ALaneThatEndsTakesItsStreamAlong) {
  lane_.Cancel();
  while (stream_.Read().has_value()) {
  }
  const absl::Status status = stream_.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(Message(status), HasSubstr("the member's bulk lane is broken"));
}

TEST_F(HostileLane, WithoutAPairNothingIsAfterAnything) {
  RawMember stream(daemon_.address());
  stream.OpenStream();
  ASSERT_TRUE(stream.Send(Hello(Options(0, 1), 0)));
  ASSERT_TRUE(stream.ReadUntil(v1::Header::kWelcome).has_value());
  v1::Frame frame;
  frame.mutable_header()->mutable_heartbeat();
  frame.set_after(5);
  ASSERT_TRUE(stream.Send(frame));
  const absl::Status status = stream.AwaitFailure();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("after: is 5; allowed: 0"));
}

TEST(BulkLaneRoom, EndsLongBeforeTheConnections) {
  constexpr int kWithLane = 3;
  const TestDaemon daemon({.max_connections = 4 * kWithLane});
  std::vector<std::unique_ptr<RawMember>> members;
  for (int rank = 0; rank < kWithLane + 2; ++rank) {
    members.push_back(std::make_unique<RawMember>(daemon.address()));
    const auto joined = members.back()->Join(RawMember::MakeJoin(
        {.session = "s", .rank = rank, .world_size = 8, .parameters = {MakeParameter("w", 1000)}}));
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_EQ(joined->bulk_lane(), rank < kWithLane) << rank;
  }
}

}  // namespace
}  // namespace gradwire

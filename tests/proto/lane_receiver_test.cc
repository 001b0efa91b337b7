#include "proto/wire/lane_receiver.h"

#include <array>
#include <chrono>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/lane_sender.h"

namespace gradwire::wire {
namespace {

using ::testing::ElementsAre;
using Receiver = LaneReceiver<std::string, int>;  // a time is a number of seconds

TEST(LaneReceiver, HoldsAFrameUntilTheOtherLanesHaveBeenTaken) {
  Receiver receiver;
  EXPECT_FALSE(receiver.Arrive(Lane::kMain, "done", 2, 0).has_value());
  EXPECT_TRUE(receiver.holds(Lane::kMain));
  EXPECT_EQ(receiver.Arrive(Lane::kBulk, "first", 0, 0), "first");
  EXPECT_TRUE(receiver.holds(Lane::kMain)) << "it arrived, but has not been taken";
  EXPECT_EQ(receiver.Taken(Lane::kBulk, 0), std::nullopt);
  EXPECT_EQ(receiver.Arrive(Lane::kBulk, "second", 0, 0), "second");
  EXPECT_EQ(receiver.Taken(Lane::kBulk, 0), "done");
  EXPECT_FALSE(receiver.holds(Lane::kMain));
  EXPECT_EQ(receiver.Taken(Lane::kMain, 0), std::nullopt);
}

TEST(LaneReceiver, AFrameThatWasHeldFreesAnotherWhenItIsTaken) {
  Receiver receiver;
  EXPECT_EQ(receiver.Arrive(Lane::kMain, "a", 0, 0), "a");
  EXPECT_FALSE(receiver.Arrive(Lane::kBulk, "b", 1, 0).has_value());
  EXPECT_EQ(receiver.Taken(Lane::kMain, 0), "b");
  EXPECT_FALSE(receiver.Arrive(Lane::kMain, "c", 1, 0).has_value());
  EXPECT_EQ(receiver.Taken(Lane::kBulk, 0), "c");
}

TEST(LaneReceiver, ReadsOnWhatPausedOnce) {
  Receiver receiver;
  receiver.Heard(Lane::kBulk, 0);
  receiver.Pause(Lane::kBulk);
  EXPECT_THAT(receiver.ReadOn(5), ElementsAre(false, true));
  EXPECT_THAT(receiver.ReadOn(5), ElementsAre(false, false));
}

TEST(LaneReceiver, ALaneIsSilentFromWhenItWasLastHeard) {
  Receiver receiver;
  EXPECT_EQ(receiver.SilentAt(Lane::kMain, 15), std::nullopt) << "it has not begun";
  receiver.Heard(Lane::kMain, 100);
  EXPECT_EQ(receiver.SilentAt(Lane::kMain, 15), 115);
  receiver.Arrive(Lane::kMain, "a", 0, 110);
  receiver.Taken(Lane::kMain, 112);
  EXPECT_EQ(receiver.SilentAt(Lane::kMain, 15), 125) << "when it came, not when it was taken";
  EXPECT_EQ(receiver.SilentAt(Lane::kBulk, 15), std::nullopt);
}

TEST(LaneReceiver, WhileALaneHoldsAFrameTheOthersSilenceCounts) {
  Receiver receiver;
  receiver.Heard(Lane::kMain, 100);
  receiver.Heard(Lane::kBulk, 100);
  receiver.Arrive(Lane::kMain, "done", 1, 100);
  EXPECT_EQ(receiver.SilentAt(Lane::kMain, 15), std::nullopt);
  EXPECT_EQ(receiver.SilentAt(Lane::kBulk, 60), 160);
  receiver.Arrive(Lane::kBulk, "large", 0, 150);
  receiver.Taken(Lane::kBulk, 151);
  EXPECT_EQ(receiver.SilentAt(Lane::kMain, 15), 166) << "read on from then";
}

TEST(LaneReceiver, LanesThatHoldEachOtherUpAreSilent) {
  Receiver receiver;
  receiver.Arrive(Lane::kMain, "a", 1, 100);
  receiver.Arrive(Lane::kBulk, "b", 1, 101);
  EXPECT_EQ(receiver.SilentAt(Lane::kMain, 15), 115);
  EXPECT_EQ(receiver.SilentAt(Lane::kBulk, 15), 116);
}

TEST(LaneReceiver, WhileReadingIsPausedSilenceDoesNotCount) {
  Receiver receiver;
  receiver.Heard(Lane::kMain, 100);
  receiver.Pause(Lane::kMain);
  EXPECT_EQ(receiver.SilentAt(Lane::kMain, 15), std::nullopt);
  receiver.ReadOn(200);
  EXPECT_EQ(receiver.SilentAt(Lane::kMain, 15), 215);
}

TEST(LaneReceiver, ForgivesALaneTheSilenceOfTheOwnersPause) {
  Receiver receiver;
  receiver.Heard(Lane::kMain, 100);
  receiver.ForgivePause(10, 112);
  EXPECT_EQ(receiver.SilentAt(Lane::kMain, 15), 125) << "no more than the pause";
  receiver.ForgivePause(10, 113);
  EXPECT_EQ(receiver.SilentAt(Lane::kMain, 15), 128) << "nobody is heard in the future";
  EXPECT_EQ(receiver.SilentAt(Lane::kBulk, 15), std::nullopt) << "not begun, nothing to forgive";
}

TEST(LaneReceiver, TakesTheTimesOfBothSides) {
  LaneReceiver<int, absl::Time> daemon;
  daemon.Heard(Lane::kMain, absl::UnixEpoch());
  EXPECT_EQ(daemon.SilentAt(Lane::kMain, absl::Seconds(15)), absl::FromUnixSeconds(15));
  using Clock = std::chrono::steady_clock;
  LaneReceiver<int, Clock::time_point> member;
  member.Heard(Lane::kMain, Clock::time_point());
  EXPECT_EQ(member.SilentAt(Lane::kMain, std::chrono::seconds(15)),
            Clock::time_point(std::chrono::seconds(15)));
}

// A sender and a receiver with two lanes between them that are slow in turns: everything arrives,
// frames of a bucket in their order.
TEST(LaneReceiver, GetsAllThatASenderSendsHoweverTheLanesRun) {
  std::mt19937 random(5);
  struct Frame {
    std::uint32_t bucket = 0;
    int number = 0;
  };
  for (int run = 0; run < 300; ++run) {
    LaneSender<Frame> sender(true);
    LaneReceiver<Frame, int> receiver;
    std::array<std::deque<LaneSender<Frame>::Ready>, kLanes> network;
    std::vector<Frame> taken;
    constexpr int kFrames = 60;
    int queued = 0;
    for (int turn = 0; taken.size() < kFrames && turn < 10'000; ++turn) {
      if (queued < kFrames && random() % 2 == 0) {
        const auto bucket = static_cast<std::uint32_t>(random() % 4);
        const SendPriority priority = {.kind = SendPriority::Kind::kResult,
                                       .scope = SendPriority::Scope::kBucket,
                                       .bucket = bucket,
                                       .bytes = random() % 3 == 0 ? kSmallPayload + 1 : 10};
        sender.Queue({bucket, queued++}, priority);
      }
      const Lane lane = random() % 3 == 0 ? Lane::kMain : Lane::kBulk;
      if (auto next = sender.Next(lane)) network[Index(lane)].push_back(*next);
      sender.Written(lane);
      std::deque<LaneSender<Frame>::Ready>& coming = network[Index(lane)];
      if (receiver.holds(lane) || coming.empty() || random() % 2 == 0) continue;
      std::optional<Frame> frame =
          receiver.Arrive(lane, coming.front().item, coming.front().after, 0);
      coming.pop_front();
      for (Lane of = lane; frame; of = Other(of)) {
        taken.push_back(*frame);
        frame = receiver.Taken(of, 0);
      }
    }
    ASSERT_EQ(taken.size(), kFrames) << "stuck in run " << run;
    std::array<int, 4> last = {-1, -1, -1, -1};
    for (const Frame& frame : taken) {
      ASSERT_GT(frame.number, last[frame.bucket]) << "run " << run;
      last[frame.bucket] = frame.number;
    }
  }
}

}  // namespace
}  // namespace gradwire::wire

#include "proto/wire/lane_sender.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = SendPriority::Kind;
using Scope = SendPriority::Scope;
using Sender = LaneSender<std::string>;

constexpr std::size_t kLarge = kSmallPayload + 1;

SendPriority ResultOf(std::uint32_t bucket, std::size_t bytes) {
  return {.kind = Kind::kResult, .scope = Scope::kBucket, .bucket = bucket, .bytes = bytes};
}

// What leaves the lane until it is empty, as "item" or "item>after".
std::vector<std::string> Leaving(Sender& sender, Lane lane) {
  std::vector<std::string> leaving;
  while (auto next = sender.Next(lane)) {
    leaving.push_back(next->after == 0 ? next->item
                                       : next->item + ">" + std::to_string(next->after));
    sender.Written(lane);
  }
  return leaving;
}

TEST(LaneSender, WritesOneAtATimeOnEachLane) {
  Sender sender(true);
  sender.Queue("bulk", ResultOf(1, kLarge));
  sender.Queue("a", ResultOf(2, 1));
  sender.Queue("b", ResultOf(2, 1));
  EXPECT_EQ(sender.Next(Lane::kMain)->item, "a");
  EXPECT_TRUE(sender.writing(Lane::kMain));
  EXPECT_FALSE(sender.Next(Lane::kMain).has_value());
  EXPECT_EQ(sender.Next(Lane::kBulk)->item, "bulk") << "the other lane has a write of its own";
  sender.Written(Lane::kMain);
  EXPECT_EQ(sender.Next(Lane::kMain)->item, "b");
  sender.Written(Lane::kMain);
  EXPECT_FALSE(sender.Next(Lane::kMain).has_value());
}

TEST(LaneSender, TakesAFewItemsForOneWrite) {
  Sender sender(false);
  for (const char* item : {"four", "six...", "one", "x"}) sender.Queue(item, ResultOf(1, 1));
  const auto size = [](const std::string& item) { return item.size(); };
  const auto items = [&](std::size_t bytes, std::size_t most) {
    std::vector<std::string> taken;
    for (auto& next : sender.NextFew(Lane::kMain, bytes, most, size)) taken.push_back(next.item);
    return taken;
  };
  EXPECT_THAT(items(10, 9), ElementsAre("four", "six..."));
  EXPECT_THAT(items(10, 9), IsEmpty()) << "a write is in flight";
  sender.Written(Lane::kMain);
  EXPECT_THAT(items(1, 9), ElementsAre("one")) << "the first one may be larger";
  sender.Written(Lane::kMain);
  sender.Queue("y", ResultOf(1, 1));
  EXPECT_THAT(items(10, 1), ElementsAre("x"));
}

TEST(LaneSender, OnOneLaneSmallResultsPassLargeOnes) {
  Sender sender(false);
  sender.Queue("on its way", ResultOf(1, kLarge));
  ASSERT_TRUE(sender.Next(Lane::kMain).has_value());
  sender.Queue("large", ResultOf(1, kLarge));
  sender.Queue("small", ResultOf(2, 1));
  sender.Queue("last of the large", ResultOf(1, 1));
  sender.Written(Lane::kMain);
  EXPECT_THAT(Leaving(sender, Lane::kMain), ElementsAre("small", "large", "last of the large"));
  EXPECT_TRUE(sender.empty(Lane::kBulk));
}

TEST(LaneSender, OnTwoLanesFramesSayWhatGoesBeforeThem) {
  Sender sender(true);
  sender.QueueHello("hello");
  sender.Queue("grant", {.scope = Scope::kBucket, .bucket = 1});
  sender.Queue("large", ResultOf(1, kLarge));
  sender.Queue("small", ResultOf(2, 1));
  sender.Queue("done", {.scope = Scope::kAll});
  EXPECT_THAT(Leaving(sender, Lane::kMain), ElementsAre("hello", "grant", "small", "done>1"));
  EXPECT_THAT(Leaving(sender, Lane::kBulk), ElementsAre("hello", "large>1"))
      << "the Hellos do not count";
}

TEST(LaneSender, HeartbeatsGoWhereNothingElseIsToSay) {
  Sender sender(true);
  sender.Queue("small", ResultOf(1, 1));
  sender.QueueHeartbeats("heartbeat");
  EXPECT_THAT(Leaving(sender, Lane::kBulk), ElementsAre("heartbeat"));
  ASSERT_TRUE(sender.Next(Lane::kMain).has_value());
  sender.QueueHeartbeats("heartbeat");
  EXPECT_TRUE(sender.empty(Lane::kMain)) << "a frame is on its way";
  sender.Written(Lane::kMain);
  sender.QueueHeartbeats("heartbeat");
  sender.QueueHeartbeats("heartbeat");
  EXPECT_THAT(Leaving(sender, Lane::kMain), ElementsAre("heartbeat")) << "one is enough";

  Sender alone(false);
  alone.QueueHeartbeats("heartbeat");
  EXPECT_TRUE(alone.empty(Lane::kBulk)) << "there is none";
}

// Frames on the main lane: a heartbeat, then the large result's grant. What follows on the bulk
// lane must name both.
TEST(LaneSender, HeartbeatsCountAsFramesOfTheirLane) {
  Sender sender(true);
  sender.QueueHeartbeats("heartbeat");
  sender.Queue("grant", {.scope = Scope::kBucket, .bucket = 1});
  sender.Queue("large", ResultOf(1, kLarge));
  EXPECT_THAT(Leaving(sender, Lane::kMain), ElementsAre("heartbeat", "grant"));
  EXPECT_THAT(Leaving(sender, Lane::kBulk), ElementsAre("heartbeat", "large>2"));
}

TEST(LaneSender, ShowsItsOwnerWhatWaits) {
  Sender sender(true);
  sender.Queue("large", ResultOf(1, kLarge));
  sender.Queue("small", ResultOf(2, 1));
  sender.Queue("tiny", ResultOf(2, 1));
  std::string all;
  sender.ForEach([&](const std::string& item) { all += item + " "; });
  EXPECT_EQ(all, "small tiny large ");
  EXPECT_EQ(sender.size(), 3U);
  ASSERT_TRUE(sender.Next(Lane::kBulk).has_value());
  EXPECT_EQ(sender.size(), 2U) << "what is on its way waits no more";
}

TEST(LaneSender, JoinsOnlyWhatHasNotLeftTheMainLane) {
  Sender sender(true);
  const auto join = [](std::string& last) {
    if (last != "ack") return false;
    last += "+";
    return true;
  };
  EXPECT_FALSE(sender.JoinLast(join));
  sender.Queue("ack", {.scope = Scope::kBucket});
  sender.Queue("large", ResultOf(1, kLarge));
  EXPECT_TRUE(sender.JoinLast(join));
  EXPECT_FALSE(sender.JoinLast(join));
  EXPECT_THAT(Leaving(sender, Lane::kMain), ElementsAre("ack+"));
  EXPECT_FALSE(sender.JoinLast([](std::string&) { return true; }));
}

TEST(LaneSender, AClosedOneStillSendsAndABrokenOneDoesNot) {
  Sender sender(true);
  sender.Queue("small", ResultOf(1, 1));
  sender.Queue("large", ResultOf(2, kLarge));
  sender.Close();
  sender.Queue("late", ResultOf(1, 1));
  sender.QueueHeartbeats("heartbeat");
  EXPECT_FALSE(sender.JoinLast([](std::string&) { return true; }));
  EXPECT_THAT(Leaving(sender, Lane::kMain), ElementsAre("small"));
  sender.Drop();
  EXPECT_THAT(Leaving(sender, Lane::kBulk), IsEmpty());
  EXPECT_EQ(sender.size(), 0U);
  EXPECT_FALSE(Sender().open());
}

}  // namespace
}  // namespace gradwire::wire

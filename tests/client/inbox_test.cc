#include "client/inbox.h"

#include <thread>

#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

Clock::time_point Soon() { return Clock::now() + std::chrono::milliseconds(5); }
Clock::time_point Later() { return Clock::now() + std::chrono::seconds(10); }

TEST(Inbox, KeepsOrder) {
  Inbox inbox(10);
  inbox.Push(WriteEvent{true});
  inbox.PushFrame(wire::Frame{.header = wire::Heartbeat{}, .payload = nullptr});
  inbox.Push(ReadEndEvent{});
  EXPECT_TRUE(std::holds_alternative<WriteEvent>(*inbox.Pop(Later()).event));
  EXPECT_TRUE(std::holds_alternative<FrameEvent>(*inbox.Pop(Later()).event));
  EXPECT_TRUE(std::holds_alternative<ReadEndEvent>(*inbox.Pop(Later()).event));
  EXPECT_FALSE(inbox.Pop(Soon()).event.has_value());
}

TEST(Inbox, PausesReadingWhileEnoughFramesWait) {
  Inbox inbox(4);
  const auto push = [&] {
    return inbox.PushFrame(wire::Frame{.header = wire::Heartbeat{}, .payload = nullptr});
  };
  EXPECT_TRUE(push());
  EXPECT_TRUE(push());
  EXPECT_TRUE(push());
  EXPECT_FALSE(push());
  EXPECT_FALSE(inbox.Pop(Later()).read_on);
  EXPECT_TRUE(inbox.Pop(Later()).read_on);
  EXPECT_FALSE(inbox.Pop(Later()).read_on);
}

TEST(Inbox, WakesTheWaitingThread) {
  Inbox inbox(4);
  std::thread pusher([&] { inbox.Push(WriteEvent{true}); });
  EXPECT_TRUE(inbox.Pop(Later()).event.has_value());
  pusher.join();
}

}  // namespace
}  // namespace gradwire::client

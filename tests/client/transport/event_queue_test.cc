#include "client/transport/event_queue.h"

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::client {
namespace {

bool PushFrame(EventQueue& events, wire::Frame frame, Source from = {}) {
  std::vector<wire::Frame> frames;
  frames.push_back(std::move(frame));
  return events.PushFrames(std::move(frames), from);
}

constexpr std::chrono::seconds kLong(20);

// Makes the calls, counts events; finishes with a ReadEndEvent.
class Recorder final : public EventHandler {
 public:
  void Handle(Event event, const ReadOn& read_on) override {
    EXPECT_FALSE(busy_.exchange(true)) << "two threads at a time";
    for (std::size_t lane = 0; lane < wire::kLanes; ++lane) read_ons[lane] += read_on[lane] ? 1 : 0;
    if (const auto* call = std::get_if<CallEvent>(&event)) call->call();
    if (std::holds_alternative<FrameEvent>(event) && on_frame) on_frame();
    if (std::holds_alternative<ReadEndEvent>(event)) finished_ = true;
    ++handled;
    busy_ = false;
  }
  bool has_work() const override { return work > 0; }
  void DoWork() override {
    EXPECT_FALSE(busy_.exchange(true)) << "two threads at a time";
    --work;
    if (on_work) on_work();
    busy_ = false;
  }
  Clock::time_point OnIdle() override { return finished_ ? Clock::now() : Clock::now() + timer; }
  void OnTimer(Clock::time_point, Clock::duration) override {
    ++timers;
    if (on_timer) on_timer();
  }
  bool finished() const override { return finished_; }

  std::chrono::milliseconds timer{kLong};
  std::function<void()> on_timer;
  std::function<void()> on_frame;
  std::function<void()> on_work;
  int work = 0;
  std::atomic<int> handled = 0;
  std::atomic<int> timers = 0;
  std::array<int, wire::kLanes> read_ons{};

 private:
  std::atomic<bool> busy_ = false;
  std::atomic<bool> finished_ = false;
};

// An event queue with its SDK thread at work.
class EventQueueTest : public ::testing::Test {
 protected:
  void Start() {
    thread_ = std::thread([this] { events_.Serve(recorder_); });
    // Before Serve an event only waits; the first one is done on the SDK thread.
    std::promise<std::thread::id> id;
    events_.Push(
        CallEvent{.call = [&] { id.set_value(std::this_thread::get_id()); }, .heavy = true});
    sdk_thread_ = id.get_future().get();
    EXPECT_EQ(sdk_thread_, thread_.get_id());
  }
  void TearDown() override {
    events_.Push(ReadEndEvent{});
    if (thread_.joinable()) thread_.join();
  }
  std::thread::id ThreadOf(CallEvent event) {
    std::promise<std::thread::id> id;
    event.call = [&] { id.set_value(std::this_thread::get_id()); };
    events_.Push(std::move(event));
    return id.get_future().get();
  }

  Recorder recorder_;
  EventQueue events_{4};
  std::thread thread_;
  std::thread::id sdk_thread_;
};

TEST_F(EventQueueTest, LightCallsRunOnTheirCallersThreadAndHeavyOnesOnTheSdkThread) {
  Start();
  // While the SDK thread is busy, even a light call is its work; it is idle soon.
  const auto deadline = Clock::now() + kLong;
  while (ThreadOf({}) != std::this_thread::get_id()) ASSERT_LT(Clock::now(), deadline);
  EXPECT_EQ(ThreadOf({.heavy = true}), sdk_thread_);
}

TEST_F(EventQueueTest, LargeResultsAreWorkOfTheSdkThreadSoThatTheOneThatReadsGoesOnReading) {
  Start();
  const auto thread_of = [this](wire::Result header, std::size_t bytes) {
    std::promise<std::thread::id> id;
    recorder_.on_frame = [&id] { id.set_value(std::this_thread::get_id()); };
    PushFrame(events_,
              wire::Frame{.header = header,
                          .payload = wire::OwnedPayload::Make(std::vector<std::byte>(bytes))});
    events_.Work();
    return id.get_future().get();
  };
  wire::Result in_place;
  in_place.in_place = true;
  wire::Result shared;
  shared.shared.emplace().bytes = wire::kSmallPayload + 1;
  EXPECT_EQ(thread_of({}, wire::kSmallPayload + 1), sdk_thread_);
  EXPECT_EQ(thread_of(in_place, 0), sdk_thread_);
  EXPECT_EQ(thread_of(shared, 0), sdk_thread_);
  const auto deadline = Clock::now() + kLong;
  while (thread_of({}, wire::kSmallPayload) != std::this_thread::get_id()) {
    ASSERT_LT(Clock::now(), deadline);
  }
}

TEST_F(EventQueueTest, TheHandlersOwnWorkGoesAfterSmallThingsAndBeforeLargeResults) {
  std::string order;
  recorder_.on_work = [&] { order += 'w'; };
  std::promise<void> done;
  // On the SDK thread, so that all of it waits together.
  events_.Push(CallEvent{
      .call =
          [&] {
            recorder_.work = 2;
            PushFrame(events_, wire::Frame{.header = wire::Result{},
                                           .payload = wire::OwnedPayload::Make(
                                               std::vector<std::byte>(wire::kSmallPayload + 1))});
            events_.Push(CallEvent{.call = [&] { order += 'c'; }});
          },
      .heavy = true});
  recorder_.on_frame = [&] {
    order += 'r';
    done.set_value();
  };
  Start();
  done.get_future().get();
  EXPECT_EQ(order, "cwwr");
}

TEST_F(EventQueueTest, WorkThatALightCallLeavesWakesTheSdkThread) {
  Start();
  std::promise<std::thread::id> id;
  recorder_.on_work = [&] { id.set_value(std::this_thread::get_id()); };
  events_.Push(CallEvent{.call = [&] { recorder_.work = 1; }});
  EXPECT_EQ(id.get_future().get(), sdk_thread_);
}

TEST_F(EventQueueTest, KeepsOrderAcrossThreads) {
  std::vector<int> order;
  Start();
  std::promise<void> done;
  for (int i = 0; i < 1000; ++i) {
    events_.Push(CallEvent{.call = [&order, i] { order.push_back(i); }, .heavy = i % 3 == 0});
  }
  events_.Push(CallEvent{.call = [&] { done.set_value(); }});
  done.get_future().get();
  ASSERT_EQ(order.size(), 1000U);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST_F(EventQueueTest, OneThreadAtATime) {
  Start();
  int sum = 0;  // guarded by nothing but the event queue
  std::vector<std::thread> pushers;
  for (int t = 0; t < 4; ++t) {
    pushers.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        events_.Push(CallEvent{.call = [&sum] { ++sum; }, .heavy = (i + t) % 7 == 0});
      }
    });
  }
  for (std::thread& pusher : pushers) pusher.join();
  int seen = 0;
  std::promise<void> done;
  events_.Push(CallEvent{.call = [&] {
    seen = sum;
    done.set_value();
  }});
  done.get_future().get();
  EXPECT_EQ(seen, 2000);
}

TEST_F(EventQueueTest, ACallFromInsideTheHandlerWaitsItsTurn) {
  Start();
  std::vector<int> order;
  std::promise<void> done;
  events_.Push(CallEvent{.call = [&] {
    EXPECT_TRUE(events_.OnThisThread());
    events_.Push(CallEvent{.call = [&] {
      order.push_back(2);
      done.set_value();
    }});
    order.push_back(1);
  }});
  done.get_future().get();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_FALSE(events_.OnThisThread());
}

TEST_F(EventQueueTest, TimersRunOnTheSdkThreadWhenAnotherThreadSetsThemSooner) {
  std::promise<std::thread::id> ran;
  recorder_.on_timer = [&] {
    if (recorder_.timers == 1) ran.set_value(std::this_thread::get_id());
    recorder_.timer = kLong;
  };
  Start();
  events_.Push(CallEvent{.call = [&] { recorder_.timer = std::chrono::milliseconds(1); }});
  auto thread = ran.get_future();
  ASSERT_EQ(thread.wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(thread.get(), sdk_thread_);
}

// What was pushed before anybody serves, in the order in which it is handled.
class OrderOfEvents final : public EventHandler {
 public:
  void Handle(Event event, const ReadOn&) override {
    if (const auto* frame = std::get_if<FrameEvent>(&event)) {
      const auto* result = std::get_if<wire::Result>(&frame->frame->header);
      order.push_back(result == nullptr ? "frame" : absl::StrCat("result ", result->id.bucket));
    } else if (std::holds_alternative<WriteEvent>(event)) {
      order.emplace_back("write");
    } else if (auto* call = std::get_if<CallEvent>(&event)) {
      call->call();
    } else {
      order.emplace_back("end");
      finished_ = true;
    }
  }
  bool has_work() const override { return false; }
  void DoWork() override {}
  Clock::time_point OnIdle() override { return finished_ ? Clock::now() : Clock::now() + kLong; }
  void OnTimer(Clock::time_point, Clock::duration) override {}
  bool finished() const override { return finished_; }

  std::vector<std::string> order;

 private:
  bool finished_ = false;
};

TEST(EventQueue, CallsAndSmallResultsDoNotWaitBehindBulk) {
  EventQueue events(16);
  OrderOfEvents handler;
  const auto result = [&](std::uint32_t bucket, std::size_t bytes) {
    PushFrame(events,
              wire::Frame{.header = wire::Result{.id = {.bucket = bucket}},
                          .payload = wire::OwnedPayload::Make(std::vector<std::byte>(bytes))});
  };
  const auto call = [&](const char* name) {
    events.Push(CallEvent{.call = [&handler, name] { handler.order.emplace_back(name); }});
  };
  result(1, wire::kSmallPayload + 1);
  call("first call");
  result(1, wire::kSmallPayload + 1);
  events.Push(WriteEvent{true});
  result(2, 4096);
  PushFrame(events, wire::Frame{.header = wire::Heartbeat{}, .payload = nullptr});
  result(3, 4096);  // what is no result is not passed
  call("second call");
  events.Push(ReadEndEvent{});
  events.Serve(handler);
  EXPECT_THAT(handler.order,
              ::testing::ElementsAre("first call", "write", "second call", "result 2", "result 1",
                                     "result 1", "frame", "result 3", "end"));
}

TEST(EventQueue, FramesOfOneMessageKeepTheirOrder) {
  EventQueue events(16);
  OrderOfEvents handler;
  std::vector<wire::Frame> frames;
  for (const std::uint32_t bucket : {7U, 8U, 9U}) {
    frames.push_back({.header = wire::Result{.id = {.bucket = bucket}},
                      .payload = wire::OwnedPayload::Make(std::vector<std::byte>(8))});
  }
  EXPECT_TRUE(events.PushFrames(std::move(frames)));
  events.Push(ReadEndEvent{});
  events.Serve(handler);
  EXPECT_THAT(handler.order, ::testing::ElementsAre("result 7", "result 8", "result 9", "end"));
}

// A message that fills the queue is taken as a whole, and pauses reading.
TEST(EventQueue, AMessageThatFillsTheQueuePausesReading) {
  EventQueue events(2);
  std::vector<wire::Frame> frames(3);
  for (wire::Frame& frame : frames) frame.header = wire::Heartbeat{};
  EXPECT_FALSE(events.PushFrames(std::move(frames)));
}

TEST(EventQueue, PausesReadingWhileEnoughFramesWait) {
  EventQueue events(4);
  Recorder recorder;
  const auto push = [&] {
    return PushFrame(events, wire::Frame{.header = wire::Heartbeat{}, .payload = nullptr});
  };
  EXPECT_TRUE(push());
  EXPECT_TRUE(push());
  EXPECT_TRUE(push());
  EXPECT_FALSE(push());
  events.Push(ReadEndEvent{});
  events.Serve(recorder);
  EXPECT_EQ(recorder.handled, 5);
  EXPECT_EQ(recorder.read_ons, (std::array<int, wire::kLanes>{1, 0}));
}

// Takes notes of the frames' numbers, which are those of barriers.
class LaneReader final : public EventHandler {
 public:
  void Handle(Event event, const ReadOn& read_on) override {
    for (std::size_t lane = 0; lane < wire::kLanes; ++lane) {
      if (read_on[lane]) order += lane == 0 ? 'M' : 'B';
    }
    if (const auto* frame = std::get_if<FrameEvent>(&event)) {
      order += std::to_string(std::get<wire::Begin>(frame->frame->header).number);
    }
    if (std::holds_alternative<ReadEndEvent>(event)) finished_ = true;
  }
  bool has_work() const override { return false; }
  void DoWork() override {}
  Clock::time_point OnIdle() override { return finished_ ? Clock::now() : Clock::now() + kLong; }
  void OnTimer(Clock::time_point, Clock::duration) override {}
  bool finished() const override { return finished_; }

  std::string order;

 private:
  bool finished_ = false;
};

wire::Frame Numbered(std::uint64_t number, std::uint64_t after = 0) {
  return {.header = wire::Begin{.number = number}, .payload = nullptr, .after = after};
}

// The two lanes of a new connection.
std::pair<Source, Source> Connect(EventQueue& events) {
  const std::uint64_t connection = events.BeginConnection();
  return {{.lane = wire::Lane::kMain, .connection = connection},
          {.lane = wire::Lane::kBulk, .connection = connection}};
}

TEST(InboxLanes, AFrameWaitsForThoseOfTheOtherLaneAndItsLaneWithIt) {
  EventQueue events(10);
  const auto [main, bulk] = Connect(events);
  EXPECT_TRUE(PushFrame(events, Numbered(1), main));
  EXPECT_FALSE(PushFrame(events, Numbered(4, 2), main));
  EXPECT_TRUE(events.holds(wire::Lane::kMain));
  EXPECT_TRUE(PushFrame(events, Numbered(2, 1), bulk));
  EXPECT_TRUE(events.holds(wire::Lane::kMain));
  EXPECT_TRUE(PushFrame(events, Numbered(3), bulk));
  EXPECT_FALSE(events.holds(wire::Lane::kMain));
  EXPECT_TRUE(PushFrame(events, Numbered(5, 2), bulk));
  events.Push(ReadEndEvent{});
  LaneReader reader;
  events.Serve(reader);
  EXPECT_EQ(reader.order, "M12345");
}

TEST(InboxLanes, WhatAnEarlierConnectionBringsIsDropped) {
  EventQueue events(10);
  const std::uint64_t first = events.BeginConnection();
  EXPECT_FALSE(PushFrame(events, Numbered(1, 1), {.connection = first}));
  const std::uint64_t second = events.BeginConnection();
  EXPECT_NE(first, second);
  EXPECT_FALSE(events.holds(wire::Lane::kMain));
  EXPECT_FALSE(PushFrame(events, Numbered(2), {.lane = wire::Lane::kBulk, .connection = first}));
  EXPECT_TRUE(PushFrame(events, Numbered(3), {.connection = second}));
  events.Push(ReadEndEvent{});
  LaneReader reader;
  events.Serve(reader);
  EXPECT_EQ(reader.order, "3");
}

TEST(InboxLanes, EachLaneThatPausedReadsOn) {
  EventQueue events(2);
  const auto [main, bulk] = Connect(events);
  EXPECT_TRUE(PushFrame(events, Numbered(1), bulk));
  EXPECT_FALSE(PushFrame(events, Numbered(2), main));
  EXPECT_FALSE(PushFrame(events, Numbered(3), bulk));
  events.Push(ReadEndEvent{});
  LaneReader reader;
  events.Serve(reader);
  EXPECT_EQ(reader.order, "1MB23");
}

}  // namespace
}  // namespace gradwire::client

#include "client/transport/poller.h"

#include <grpcpp/alarm.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "client/runtime/completion.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using Clock = Poller::Clock;

constexpr std::chrono::seconds kLong(20);
constexpr Poller::Settings kForAsLongAsItTakes{
    .poll_while_idle = kLong, .help = kLong, .no_waiting_poll = Clock::duration::zero()};
constexpr Poller::Settings kUntilTheWaitEnds{
    .poll_while_idle = kLong, .help = 10 * kLong, .no_waiting_poll = Clock::duration::zero()};

// A call of a program, on its way to its outcome.
std::shared_ptr<Outcome> Begin(const std::shared_ptr<Poller>& poller, bool light = true) {
  auto outcome = std::make_shared<Outcome>();
  outcome->ReadBy(poller, light);
  return outcome;
}

// What a stream would begin: it is over at once, and completes an outcome on the thread that polls.
class Event {
 public:
  Event(
      Poller& poller, std::shared_ptr<Outcome> outcome, std::function<void()> before = [] {})
      : outcome_(std::move(outcome)), before_(std::move(before)) {
    // Long past: an alarm for now would go off at the next millisecond.
    alarm_.Set(poller.queue(), std::chrono::system_clock::time_point(), poller.Begin(operation_));
  }

  std::thread::id thread() const { return thread_; }

 private:
  const std::shared_ptr<Outcome> outcome_;
  const std::function<void()> before_;
  std::thread::id thread_;
  Poller::Operation operation_{.done =
                                   [](void* owner, bool) {
                                     auto& self = *static_cast<Event*>(owner);
                                     self.thread_ = std::this_thread::get_id();
                                     self.before_();
                                     // The event is gone when the outcome is seen.
                                     const std::shared_ptr<Outcome> outcome = self.outcome_;
                                     outcome->Complete(absl::OkStatus());
                                   },
                               .owner = this};
  grpc::Alarm alarm_;
};

// A call whose answer comes in while this thread waits. Returns the thread that read it.
std::thread::id Call(const std::shared_ptr<Poller>& poller) {
  const std::shared_ptr<Outcome> outcome = Begin(poller);
  const Event answer(*poller, outcome);
  EXPECT_TRUE(outcome->WaitUntil(Clock::now() + kLong).ok());
  return answer.thread();
}

// Calls until the poller leaves the queue to this thread.
void CallUntilItStandsBy(const std::shared_ptr<Poller>& poller) {
  const auto end = Clock::now() + kLong;
  while (!poller->stands_by()) {
    Call(poller);
    ASSERT_LT(Clock::now(), end) << "the poller's own thread goes on reading";
  }
}

TEST(Poller, AThreadThatWaitsAgainAndAgainReadsItsAnswersItself) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  CallUntilItStandsBy(poller);
  int by_this_thread = 0;
  for (int i = 0; i < 1000; ++i) by_this_thread += Call(poller) == std::this_thread::get_id();
  // Where it was interrupted between call and wait, it is not expected back.
  EXPECT_GT(by_this_thread, 500);
}

// An event with which the poller's own thread is busy until it is told to go on.
class LongEvent {
 public:
  explicit LongEvent(Poller& poller) {
    alarm_.Set(poller.queue(), std::chrono::system_clock::time_point(), poller.Begin(operation_));
    began_.get_future().wait();
  }
  void GoOn() { go_on_.set_value(); }

 private:
  std::promise<void> began_;
  std::promise<void> go_on_;
  Poller::Operation operation_{.done =
                                   [](void* owner, bool) {
                                     auto& self = *static_cast<LongEvent*>(owner);
                                     self.began_.set_value();
                                     self.go_on_.get_future().wait();
                                   },
                               .owner = this};
  grpc::Alarm alarm_;
};

TEST(Poller, StandsByOnceAThreadThatWaitedFoundTheQueueTaken) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  LongEvent event(*poller);
  EXPECT_FALSE(poller->stands_by());
  poller->PollWhileWaiting([] { return false; }, Clock::now() + kLong, /*came_at_once=*/true);
  event.GoOn();
  const auto end = Clock::now() + kLong / 2;
  while (!poller->stands_by() && Clock::now() < end) std::this_thread::yield();
  EXPECT_TRUE(poller->stands_by());
}

TEST(Poller, DoesNotStandByWhereNobodyMayHelp) {
  const auto poller =
      Poller::Start({.poll_while_idle = kLong, .help = kLong, .no_waiting_poll = 10 * kLong});
  LongEvent event(*poller);
  poller->PollWhileWaiting([] { return false; }, Clock::now() + kLong, /*came_at_once=*/true);
  Begin(poller, /*light=*/false)->Complete(absl::OkStatus());
  event.GoOn();
  const auto end = Clock::now() + std::chrono::milliseconds(50);
  while (Clock::now() < end) ASSERT_FALSE(poller->stands_by());
  EXPECT_NE(Call(poller), std::this_thread::get_id());
}

TEST(Poller, WhatNobodyWaitsForIsReadAtOnce) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  CallUntilItStandsBy(poller);
  const std::shared_ptr<Outcome> outcome = Begin(poller);
  const Event answer(*poller, outcome);
  std::promise<std::thread::id> done;
  outcome->OnDone([&done](const absl::Status&) { done.set_value(std::this_thread::get_id()); });
  std::future<std::thread::id> read = done.get_future();
  ASSERT_EQ(read.wait_for(kLong / 2), std::future_status::ready);
  EXPECT_NE(read.get(), std::this_thread::get_id());
}

TEST(Poller, AHeavyCallIsLeftToThePollersThread) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  CallUntilItStandsBy(poller);
  const std::shared_ptr<Outcome> outcome = Begin(poller, /*light=*/false);
  const Event answer(*poller, outcome);
  ASSERT_TRUE(outcome->WaitUntil(Clock::now() + kLong / 2).ok());
  EXPECT_NE(answer.thread(), std::this_thread::get_id());
}

TEST(Poller, AfterAHeavyCallSmallOnesAreReadByThePollersThread) {
  const auto poller =
      Poller::Start({.poll_while_idle = kLong, .help = kLong, .no_waiting_poll = kLong});
  CallUntilItStandsBy(poller);
  Begin(poller, /*light=*/false)->Complete(absl::OkStatus());
  for (int i = 0; i < 100; ++i) ASSERT_NE(Call(poller), std::this_thread::get_id()) << i;
  EXPECT_FALSE(poller->stands_by());
}

TEST(Poller, WhereResultsComeSlowlyThePollersThreadReads) {
  const auto poller = Poller::Start(
      {.poll_while_idle = kLong, .help = std::chrono::milliseconds(200), .no_waiting_poll = kLong});
  CallUntilItStandsBy(poller);
  const std::shared_ptr<Outcome> slow = Begin(poller);
  EXPECT_EQ(slow->WaitUntil(Clock::now() + std::chrono::milliseconds(400)).code(),
            absl::StatusCode::kDeadlineExceeded);
  slow->Complete(absl::OkStatus());
  EXPECT_NE(Call(poller), std::this_thread::get_id());
  EXPECT_FALSE(poller->stands_by());
}

TEST(Poller, ThePollersThreadTakesOverWhenNobodyComesBack) {
  const auto poller =
      Poller::Start({.poll_while_idle = std::chrono::milliseconds(1), .help = kLong});
  CallUntilItStandsBy(poller);
  const std::shared_ptr<Outcome> outcome = Begin(poller);
  const Event answer(*poller, outcome);
  const auto end = Clock::now() + kLong;
  while (!outcome->done() && Clock::now() < end) std::this_thread::yield();  // never waits
  ASSERT_TRUE(outcome->WaitUntil(end).ok());
  EXPECT_NE(answer.thread(), std::this_thread::get_id());
}

TEST(Poller, AThreadThatHelpsLeavesWhenAnotherThreadHasItsOutcome) {
  const auto poller = Poller::Start(kUntilTheWaitEnds);
  CallUntilItStandsBy(poller);
  const std::shared_ptr<Outcome> outcome = Begin(poller);
  std::promise<void> waits;
  std::thread other([&] {
    waits.get_future().wait();
    outcome->Complete(absl::AbortedError("by another thread"));
  });
  const auto begin = Clock::now();
  waits.set_value();
  EXPECT_EQ(outcome->WaitUntil(begin + kLong).message(), "by another thread [GW300]");
  EXPECT_LT(Clock::now(), begin + kLong) << "only its deadline ended it";
  other.join();
}

TEST(Poller, CallsBesideEachOtherAreLeftToThePollersThread) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  CallUntilItStandsBy(poller);
  const std::shared_ptr<Outcome> other = Begin(poller);
  EXPECT_TRUE(poller->stands_by());
  EXPECT_NE(Call(poller), std::this_thread::get_id());
  EXPECT_FALSE(poller->stands_by());
}

TEST(Poller, AThreadThatHelpsLeavesTheQueueToCallsThatBeganMeanwhile) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  CallUntilItStandsBy(poller);
  const std::shared_ptr<Outcome> outcome = Begin(poller);
  std::shared_ptr<Outcome> late;
  const Event answer(*poller, outcome, [&] { late = Begin(poller); });
  ASSERT_TRUE(outcome->WaitUntil(Clock::now() + kLong).ok());
  const Event other(*poller, late);
  const auto end = Clock::now() + kLong / 2;
  while (!late->done() && Clock::now() < end) std::this_thread::yield();  // never waits
  EXPECT_TRUE(late->done());
}

TEST(Poller, HelpEndsAtTheCallersDeadline) {
  const auto poller = Poller::Start(kUntilTheWaitEnds);
  CallUntilItStandsBy(poller);
  const std::shared_ptr<Outcome> outcome = Begin(poller);
  const auto begin = Clock::now();
  EXPECT_EQ(outcome->WaitUntil(begin + std::chrono::milliseconds(5)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(Clock::now(), begin + kLong);
}

TEST(Poller, HelpEndsAtTheCallersDeadlineThoughEventsKeepComing) {
  const auto poller = Poller::Start(kUntilTheWaitEnds);
  CallUntilItStandsBy(poller);
  // Whatever reads an event begins the next one.
  struct Stream {
    Poller& poller;
    std::atomic<bool> flows{true};
    std::promise<void> over{};
    std::unique_ptr<grpc::Alarm> alarm{};
    Poller::Operation operation{
        .done = [](void* owner, bool) { static_cast<Stream*>(owner)->Next(); }, .owner = this};
    void Next() {
      if (!flows) return over.set_value();
      alarm = std::make_unique<grpc::Alarm>();
      alarm->Set(poller.queue(), std::chrono::system_clock::time_point(), poller.Begin(operation));
    }
  } stream{.poller = *poller};
  stream.Next();
  const std::shared_ptr<Outcome> outcome = Begin(poller);
  const auto begin = Clock::now();
  EXPECT_EQ(outcome->WaitUntil(begin + std::chrono::milliseconds(5)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(Clock::now(), begin + kLong);
  stream.flows = false;
  EXPECT_EQ(stream.over.get_future().wait_for(kLong), std::future_status::ready);
}

TEST(Poller, WaitsThatAreOverBeforeTheyBeginLeaveTheReadingToThePollersThread) {
  const auto poller = Poller::Start(kUntilTheWaitEnds);
  const auto begin = Clock::now();
  for (const auto deadline : {begin, begin - kLong, Clock::time_point::min()}) {
    CallUntilItStandsBy(poller);
    const std::shared_ptr<Outcome> outcome = Begin(poller);
    EXPECT_EQ(outcome->WaitUntil(deadline).code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(poller->stands_by());
  }
  EXPECT_LT(Clock::now(), begin + kLong);
}

TEST(Poller, WhatIsWaitedForInShortPiecesIsRead) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  CallUntilItStandsBy(poller);
  const std::shared_ptr<Outcome> outcome = Begin(poller);
  const Event answer(*poller, outcome);
  const auto end = Clock::now() + kLong / 2;
  while (!outcome->WaitUntil(Clock::now() + std::chrono::microseconds(50)).ok()) {
    ASSERT_LT(Clock::now(), end);
  }
  EXPECT_NE(answer.thread(), std::this_thread::get_id());
}

TEST(Poller, AThreadThatComesLateIsNotExpectedBackAtOnce) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  CallUntilItStandsBy(poller);
  const std::shared_ptr<Outcome> outcome = Begin(poller);
  const Event answer(*poller, outcome);
  const auto late = Clock::now() + std::chrono::milliseconds(1);
  while (Clock::now() < late) std::this_thread::yield();
  ASSERT_TRUE(outcome->WaitUntil(Clock::now() + kLong).ok());
  EXPECT_FALSE(poller->stands_by());
}

TEST(Poller, ManyThreadsThatCallAndWaitAllGetTheirOutcomes) {
  const auto poller = Poller::Start();
  std::atomic<int> told = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const std::shared_ptr<Outcome> outcome = Begin(poller, (i + t) % 3 != 0);
        const Event answer(*poller, outcome);
        if (i % 5 == t) outcome->OnDone([&told](const absl::Status&) { ++told; });
        ASSERT_TRUE(outcome->WaitUntil(Clock::now() + kLong).ok()) << i;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(told, 4 * 100);
}

TEST(Poller, AnOutcomeThatNobodyCompletesIsNoCallAnyMore) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  Begin(poller, /*light=*/false).reset();
  CallUntilItStandsBy(poller);
}

TEST(Poller, MayLoseItsLastReferenceOnItsOwnThread) {
  struct Last {
    std::shared_ptr<Poller> poller;
    std::promise<void> gone;
  } last{.poller = Poller::Start(), .gone = {}};
  Poller::Operation drop = {.done =
                                [](void* owner, bool) {
                                  auto& self = *static_cast<Last*>(owner);
                                  self.poller.reset();
                                  self.gone.set_value();
                                },
                            .owner = &last};
  grpc::Alarm alarm;
  grpc::CompletionQueue* const queue = last.poller->queue();
  alarm.Set(queue, std::chrono::system_clock::now(), last.poller->Begin(drop));
  EXPECT_EQ(last.gone.get_future().wait_for(kLong), std::future_status::ready);
}

}  // namespace
}  // namespace gradwire::client

#include "client/poller.h"

#include <grpcpp/alarm.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "client/completion.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using Clock = Poller::Clock;

constexpr std::chrono::seconds kLong(20);
constexpr Poller::Settings kForAsLongAsItTakes{.stand_by = kLong, .help = kLong};

// What a stream would begin: it is over at once, and completes an outcome on the thread that polls.
class Event {
 public:
  Event(Poller& poller, Outcome& outcome) : outcome_(outcome) {
    // Long past: an alarm for now would go off at the next millisecond.
    alarm_.Set(poller.queue(), std::chrono::system_clock::time_point(), poller.Begin(operation_));
  }

  std::thread::id thread() const { return thread_; }

 private:
  Outcome& outcome_;
  std::thread::id thread_;
  Poller::Operation operation_{.done =
                                   [](void* owner, bool) {
                                     auto& self = *static_cast<Event*>(owner);
                                     self.thread_ = std::this_thread::get_id();
                                     self.outcome_.Complete(absl::OkStatus());
                                   },
                               .owner = this};
  grpc::Alarm alarm_;
};

// A call whose answer comes in while this thread waits. Returns the thread that read it.
std::thread::id Call(const std::shared_ptr<Poller>& poller) {
  Outcome outcome(poller, /*light=*/true);
  const Event answer(*poller, outcome);
  EXPECT_TRUE(outcome.WaitUntil(Clock::now() + kLong).ok());
  return answer.thread();
}

// Calls until this thread reads its answers itself, so that the poller stands by.
void CallUntilThisThreadPolls(const std::shared_ptr<Poller>& poller) {
  const auto end = Clock::now() + kLong;
  while (Call(poller) != std::this_thread::get_id()) {
    ASSERT_LT(Clock::now(), end) << "the poller's own thread read every answer";
  }
}

TEST(Poller, AThreadThatWaitsAgainAndAgainReadsItsAnswersItself) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  CallUntilThisThreadPolls(poller);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(Call(poller), std::this_thread::get_id()) << i;
}

TEST(Poller, StandsByOnceAThreadThatWaitedFoundTheQueueTaken) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  struct Taken {
    std::promise<void> polls;
    std::promise<void> go_on;
  } taken;
  Poller::Operation operation = {.done =
                                     [](void* owner, bool) {
                                       auto& self = *static_cast<Taken*>(owner);
                                       self.polls.set_value();
                                       self.go_on.get_future().wait();
                                     },
                                 .owner = &taken};
  grpc::Alarm alarm;
  alarm.Set(poller->queue(), std::chrono::system_clock::time_point(), poller->Begin(operation));
  taken.polls.get_future().wait();
  EXPECT_FALSE(poller->stands_by());
  poller->Help([] { return false; }, Clock::now() + kLong);
  taken.go_on.set_value();
  const auto end = Clock::now() + kLong / 2;
  while (!poller->stands_by() && Clock::now() < end) std::this_thread::yield();
  EXPECT_TRUE(poller->stands_by());
}

TEST(Poller, WhatNobodyWaitsForIsReadAtOnce) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  CallUntilThisThreadPolls(poller);
  Outcome outcome(poller, /*light=*/true);
  const Event answer(*poller, outcome);
  std::promise<std::thread::id> done;
  outcome.OnDone([&done](const absl::Status&) { done.set_value(std::this_thread::get_id()); });
  std::future<std::thread::id> read = done.get_future();
  ASSERT_EQ(read.wait_for(kLong / 2), std::future_status::ready);
  EXPECT_NE(read.get(), std::this_thread::get_id());
}

TEST(Poller, AHeavyCallIsLeftToThePollersThread) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  CallUntilThisThreadPolls(poller);
  Outcome outcome(poller, /*light=*/false);
  const Event answer(*poller, outcome);
  ASSERT_TRUE(outcome.WaitUntil(Clock::now() + kLong / 2).ok());
  EXPECT_NE(answer.thread(), std::this_thread::get_id());
}

TEST(Poller, ThePollersThreadTakesOverWhenNobodyComesBack) {
  const auto poller = Poller::Start({.stand_by = std::chrono::milliseconds(1), .help = kLong});
  CallUntilThisThreadPolls(poller);
  Outcome outcome(poller, /*light=*/true);
  const Event answer(*poller, outcome);
  const auto end = Clock::now() + kLong;
  while (!outcome.done() && Clock::now() < end) std::this_thread::yield();  // never waits
  ASSERT_TRUE(outcome.WaitUntil(end).ok());
  EXPECT_NE(answer.thread(), std::this_thread::get_id());
}

TEST(Poller, AThreadThatHelpsLeavesWhenAnotherThreadHasItsOutcome) {
  const auto poller = Poller::Start({.stand_by = kLong, .help = 10 * kLong});
  CallUntilThisThreadPolls(poller);
  Outcome outcome(poller, /*light=*/true);
  std::promise<void> waits;
  std::thread other([&] {
    waits.get_future().wait();
    outcome.Complete(absl::AbortedError("by another thread"));
  });
  const auto begin = Clock::now();
  waits.set_value();
  EXPECT_EQ(outcome.WaitUntil(begin + kLong).message(), "by another thread");
  EXPECT_LT(Clock::now(), begin + kLong) << "only its deadline ended it";
  other.join();
}

TEST(Poller, AThreadThatHelpsLeavesTheQueueToThoseThatStillWait) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  CallUntilThisThreadPolls(poller);
  Outcome late(poller, /*light=*/true);
  EXPECT_EQ(Call(poller), std::this_thread::get_id());
  const Event answer(*poller, late);
  const auto end = Clock::now() + kLong / 2;
  while (!late.done() && Clock::now() < end) std::this_thread::yield();  // never waits
  ASSERT_TRUE(late.WaitUntil(end).ok());
  EXPECT_NE(answer.thread(), std::this_thread::get_id());
}

TEST(Poller, HelpEndsAtTheCallersDeadline) {
  const auto poller = Poller::Start({.stand_by = kLong, .help = 10 * kLong});
  CallUntilThisThreadPolls(poller);
  const Outcome outcome(poller, /*light=*/true);
  EXPECT_EQ(outcome.WaitUntil(Clock::now() + std::chrono::milliseconds(5)).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(Poller, ManyThreadsThatCallAndWaitAllGetTheirOutcomes) {
  const auto poller = Poller::Start();
  std::atomic<int> told = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        Outcome outcome(poller, /*light=*/(i + t) % 3 != 0);
        const Event answer(*poller, outcome);
        if (i % 5 == t) outcome.OnDone([&told](const absl::Status&) { ++told; });
        ASSERT_TRUE(outcome.WaitUntil(Clock::now() + kLong).ok()) << i;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(told, 4 * 100);
}

TEST(Poller, AnOutcomeThatNobodyCompletesIsNoCallAnyMore) {
  const auto poller = Poller::Start(kForAsLongAsItTakes);
  { const Outcome forgotten(poller, /*light=*/false); }
  CallUntilThisThreadPolls(poller);
  EXPECT_TRUE(poller->stands_by());
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

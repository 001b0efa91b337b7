#include "server/net/offer_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/memory_offers.h"
#include "tests/testing/ranks.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::SealedFd;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kAnswerTimeout(10);

// A handler that holds tokens' offers until they are let go.
class Gate {
 public:
  OfferThreads::Handler handler() {
    return [this](const wire::MemoryRequest& request, uid_t user,
                  wire::GoOn) -> absl::StatusOr<wire::MemoryReply> {
      MutexLock lock(mutex_);
      ++entered_[request.token];
      users_.insert(user);
      at_once_ = std::max(at_once_, ++at_work_[request.token]);
      changed_.NotifyAll();
      while (closed_.contains(request.token)) changed_.Wait(mutex_);
      --at_work_[request.token];
      return wire::MemoryReply{.attachment = request.attachment};
    };
  }
  void Close(const std::string& token) {
    MutexLock lock(mutex_);
    closed_.insert(token);
  }
  void Open() {
    MutexLock lock(mutex_);
    closed_.clear();
    changed_.NotifyAll();
  }
  bool AwaitEntered(const std::string& token, int count) {
    const auto deadline = std::chrono::steady_clock::now() + kAnswerTimeout;
    MutexLock lock(mutex_);
    while (entered_[token] < count) {
      if (!changed_.WaitUntil(mutex_, deadline)) return entered_[token] >= count;
    }
    return true;
  }
  int entered(const std::string& token) {
    MutexLock lock(mutex_);
    return entered_[token];
  }
  std::set<uid_t> users() {
    MutexLock lock(mutex_);
    return users_;
  }
  // Of one token.
  int most_at_once() {
    MutexLock lock(mutex_);
    return at_once_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::set<std::string> closed_ GRADWIRE_GUARDED_BY(mutex_);
  std::map<std::string, int> entered_ GRADWIRE_GUARDED_BY(mutex_);
  std::map<std::string, int> at_work_ GRADWIRE_GUARDED_BY(mutex_);
  std::set<uid_t> users_ GRADWIRE_GUARDED_BY(mutex_);
  int at_once_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

// The member's end of an offer that was submitted.
UniqueFd Submit(OfferThreads& threads, const std::string& token, std::uint64_t attachment = 0) {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  UniqueFd member(ends[0]);
  UniqueFd daemon(ends[1]);
  EXPECT_TRUE(
      wire::SendMemoryRequest(
          member.get(),
          {.token = token, .start_id = 1, .attachment = attachment, .segment = SealedFd(4096)})
          .ok());
  threads.Submit(std::move(daemon));
  return member;
}

absl::StatusOr<wire::MemoryReply> Answer(const UniqueFd& member) {
  return wire::ReceiveMemoryReply(member.get(), std::chrono::steady_clock::now() + kAnswerTimeout);
}

std::string WhyRefused(const UniqueFd& member) {
  const auto answer = Answer(member);
  return std::string((answer.ok() ? answer->status : answer.status()).message());
}

// Works until nobody waits for the answer, and says why.
absl::StatusOr<wire::MemoryReply> WorkOn(const wire::MemoryRequest&, uid_t, wire::GoOn go_on) {
  const auto deadline = std::chrono::steady_clock::now() + kAnswerTimeout;
  while (std::chrono::steady_clock::now() < deadline) {
    if (absl::Status may = go_on(); !may.ok()) return may;
    std::this_thread::yield();
  }
  return absl::InternalError("nobody ended the work");
}

// The member's end of a probe that was submitted.
UniqueFd SubmitProbe(OfferThreads& threads, const std::string& probe) {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  UniqueFd member(ends[0]);
  UniqueFd daemon(ends[1]);
  EXPECT_TRUE(wire::SendMemoryRequest(member.get(), {.start_id = 7, .probe = probe}).ok());
  threads.Submit(std::move(daemon));
  return member;
}

TEST(OfferThreads, AnswerAProbeWithoutAThread) {
  OfferThreads threads(
      {.threads = 0}, WorkOn,
      [](std::uint64_t start_id, const std::string& probe) -> absl::StatusOr<std::string> {
        if (probe == "bad") return absl::InvalidArgumentError("probe: bad");
        return std::to_string(start_id) + probe;
      });
  const auto answer = Answer(SubmitProbe(threads, " asks"));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->proof, "7 asks");
  EXPECT_EQ(WhyRefused(SubmitProbe(threads, "bad")), "probe: bad");
  OfferThreads without({.threads = 0}, WorkOn);
  EXPECT_EQ(WhyRefused(SubmitProbe(without, "asks")), "probes are not answered");
}

TEST(OfferThreadsTest, AnswersWhatTheHandlerSays) {
  Gate gate;
  OfferThreads threads({}, gate.handler());
  for (std::uint64_t i = 1; i < 20; ++i) {
    const auto answer = Answer(Submit(threads, "a", i));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answer->status.ok()) << answer->status;
    EXPECT_EQ(answer->attachment, i);
  }
  EXPECT_EQ(gate.users(), std::set<uid_t>{geteuid()});
}

TEST(OfferThreadsTest, AMemberTakesOneThreadAtMost) {
  Gate gate;
  gate.Close("greedy");
  OfferThreads threads({.threads = 2}, gate.handler());
  std::vector<UniqueFd> greedy;
  for (int i = 0; i < 3; ++i) greedy.push_back(Submit(threads, "greedy"));
  ASSERT_TRUE(gate.AwaitEntered("greedy", 1));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(WhyRefused(Submit(threads, "other")), "");
  EXPECT_EQ(gate.entered("greedy"), 1);
  gate.Open();
  for (const UniqueFd& member : greedy) EXPECT_EQ(WhyRefused(member), "");
  EXPECT_EQ(gate.entered("greedy"), 3);
  EXPECT_EQ(gate.most_at_once(), 1);
}

TEST(OfferThreadsTest, ServesSeveralMembersAtOnce) {
  Gate gate;
  gate.Close("a");
  gate.Close("b");
  OfferThreads threads({.threads = 3}, gate.handler());
  const UniqueFd a = Submit(threads, "a");
  const UniqueFd b = Submit(threads, "b");
  EXPECT_TRUE(gate.AwaitEntered("a", 1));
  EXPECT_TRUE(gate.AwaitEntered("b", 1));
  EXPECT_EQ(WhyRefused(Submit(threads, "c")), "");
  gate.Open();
  EXPECT_EQ(WhyRefused(a), "");
  EXPECT_EQ(WhyRefused(b), "");
}

TEST(OfferThreadsTest, FurtherSegmentsLeaveAThreadForFirstOnes) {
  Gate gate;
  OfferThreads threads({.threads = 3, .max_pending = 8}, gate.handler());
  std::vector<UniqueFd> greedy;
  const auto submit = [&](const std::string& token) {
    gate.Close(token);
    greedy.push_back(Submit(threads, token, 1));
  };
  for (const char* token : {"a", "b", "c", "d"}) submit(token);
  ASSERT_TRUE(gate.AwaitEntered("a", 1));
  ASSERT_TRUE(gate.AwaitEntered("b", 1));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(WhyRefused(Submit(threads, "other")), "");
  EXPECT_EQ(gate.entered("c") + gate.entered("d"), 0);
  // Nor do they fill the queue.
  for (const char* token : {"e", "f", "g", "h", "i"}) submit(token);
  EXPECT_THAT(WhyRefused(greedy.back()),
              HasSubstr("the daemon has 6 offers of shared memory that wait; allowed: 6"));
  greedy.pop_back();
  EXPECT_EQ(WhyRefused(Submit(threads, "other")), "");
  gate.Open();
  for (const UniqueFd& member : greedy) EXPECT_EQ(WhyRefused(member), "");
}

TEST(OfferThreadsTest, BoundsWhatWaits) {
  Gate gate;
  gate.Close("a");
  OfferThreads threads({.threads = 1, .max_pending = 3, .max_pending_of_member = 2},
                       gate.handler());
  std::vector<UniqueFd> members;
  members.push_back(Submit(threads, "a"));
  ASSERT_TRUE(gate.AwaitEntered("a", 1));
  members.push_back(Submit(threads, "a"));
  members.push_back(Submit(threads, "a"));
  EXPECT_THAT(WhyRefused(Submit(threads, "a")), HasSubstr("the member has 2 offers"));
  members.push_back(Submit(threads, "b"));
  EXPECT_EQ(threads.pending(), 3U);
  EXPECT_THAT(WhyRefused(Submit(threads, "c")), HasSubstr("the daemon has 3 offers"));
  gate.Open();
  for (const UniqueFd& member : members) EXPECT_EQ(WhyRefused(member), "");
  EXPECT_EQ(threads.pending(), 0U);
}

TEST(OfferThreadsTest, WhatIsNoOfferIsRefusedAtOnce) {
  Gate gate;
  OfferThreads threads({}, gate.handler());
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd member(ends[0]);
  ASSERT_EQ(send(member.get(), "GARBAGE!", 8, 0), 8);
  threads.Submit(UniqueFd(ends[1]));
  EXPECT_THAT(WhyRefused(member), HasSubstr("do not begin as one"));
}

TEST(OfferThreadsTest, WorkEndsWhenItsMemberIsGone) {
  std::atomic<bool> begun = false;
  std::atomic<bool> ended = false;
  absl::Status why;
  OfferThreads threads({.threads = 1},
                       [&](const wire::MemoryRequest& request, uid_t user, wire::GoOn go_on) {
                         begun = true;
                         auto reply = WorkOn(request, user, go_on);
                         why = reply.status();
                         ended = true;
                         return reply;
                       });
  UniqueFd member = Submit(threads, "a");
  ASSERT_TRUE(Eventually([&] { return begun.load(); }));
  member.Reset();
  ASSERT_TRUE(Eventually([&] { return ended.load(); }));
  EXPECT_EQ(why.code(), absl::StatusCode::kCancelled) << why;
}

TEST(OfferThreadsTest, NothingIsMappedForAMemberThatIsGone) {
  Gate gate;
  gate.Close("a");
  OfferThreads threads({.threads = 1}, gate.handler());
  const UniqueFd at_work = Submit(threads, "a");
  ASSERT_TRUE(gate.AwaitEntered("a", 1));
  Submit(threads, "gone").Reset();
  const UniqueFd last = Submit(threads, "last");
  gate.Open();
  EXPECT_EQ(WhyRefused(last), "");
  EXPECT_EQ(gate.entered("gone"), 0);
}

TEST(OfferThreadsTest, WorkAndWaitingHaveADeadline) {
  OfferThreads threads({.threads = 1, .timeout = std::chrono::milliseconds(20)}, WorkOn);
  const UniqueFd at_work = Submit(threads, "a");
  const UniqueFd waiting = Submit(threads, "a");
  EXPECT_THAT(WhyRefused(at_work), HasSubstr("the offer was not answered within 20 ms"));
  EXPECT_THAT(WhyRefused(waiting), HasSubstr("the offer was not answered within 20 ms"));
}

TEST(OfferThreadsTest, StopEndsWorkAndClosesWhatWaits) {
  std::atomic<bool> begun = false;
  OfferThreads threads({.threads = 1},
                       [&](const wire::MemoryRequest& request, uid_t user, wire::GoOn go_on) {
                         begun = true;
                         return WorkOn(request, user, go_on);
                       });
  const UniqueFd at_work = Submit(threads, "a");
  ASSERT_TRUE(Eventually([&] { return begun.load(); }));
  const UniqueFd waiting = Submit(threads, "b");
  EXPECT_EQ(threads.pending(), 1U);
  threads.Stop();
  EXPECT_THAT(WhyRefused(at_work), HasSubstr("the daemon is shutting down"));
  char byte = 0;
  EXPECT_EQ(recv(waiting.get(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_THAT(WhyRefused(Submit(threads, "c")), HasSubstr("the daemon is shutting down"));
  EXPECT_EQ(threads.pending(), 0U);
  threads.Stop();
}

}  // namespace
}  // namespace gradwire::server

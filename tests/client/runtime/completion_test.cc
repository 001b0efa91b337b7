#include "client/runtime/completion.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

TEST(Outcome, WaitersAndCallbacksSeeTheFirstStatus) {
  Outcome outcome;
  std::atomic<int> callbacks = 0;
  outcome.OnDone([&](const absl::Status& status) {
    callbacks += status.message() == "first [GW300]" ? 1 : 100;
  });
  EXPECT_FALSE(outcome.done());
  std::thread waiter([&] { EXPECT_EQ(outcome.Wait().message(), "first [GW300]"); });
  outcome.Complete(absl::AbortedError("first"));
  outcome.Complete(absl::OkStatus());
  waiter.join();
  outcome.OnDone([&](const absl::Status& status) {
    callbacks += status.message() == "first [GW300]" ? 1 : 100;
  });
  EXPECT_EQ(callbacks, 2);
  EXPECT_TRUE(outcome.done());
}

TEST(Outcome, WaitEndsAtItsDeadline) {
  const Outcome outcome;
  EXPECT_EQ(
      outcome.WaitUntil(std::chrono::steady_clock::now() + std::chrono::milliseconds(10)).code(),
      absl::StatusCode::kDeadlineExceeded);
}

TEST(Completion, DefaultIsDone) {
  const Completion completion;
  EXPECT_TRUE(completion.done());
  EXPECT_TRUE(completion.Wait(absl::InfiniteDuration()).ok());
}

}  // namespace
}  // namespace gradwire::client

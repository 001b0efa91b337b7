#include "server/daemon/ticker.h"

#include <atomic>
#include <chrono>
#include <future>

#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

TEST(Ticker, TicksAtOnceAndAgain) {
  std::atomic<int> ticks = 0;
  std::promise<void> third;
  Ticker ticker(absl::Microseconds(10), [&](absl::Time) {
    if (++ticks == 3) third.set_value();
  });
  EXPECT_EQ(third.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

TEST(Ticker, StopsWithinALongInterval) {
  std::atomic<int> ticks = 0;
  std::promise<void> first;
  Ticker ticker(absl::Hours(1), [&](absl::Time) {
    if (++ticks == 1) first.set_value();
  });
  ASSERT_EQ(first.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  ticker.Stop();  // and not in an hour
  ticker.Stop();
  EXPECT_EQ(ticks, 1);
}

}  // namespace
}  // namespace gradwire::server

#include "server/session/quota.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;

constexpr auto kFirst = Quota::Need::kFirst;
constexpr auto kFurther = Quota::Need::kFurther;

std::string WhyRefused(const std::shared_ptr<Quota>& quota, Quota::Need need) {
  const auto share = Quota::Take(quota, need);
  return share.ok() ? "" : std::string(share.status().message());
}

TEST(QuotaTest, CountsForTheWholeToo) {
  const auto whole = std::make_shared<Quota>("the daemon", "things", 3);
  const auto one = std::make_shared<Quota>("the first", "things", 2, whole);
  const auto other = std::make_shared<Quota>("the other", "things", 2, whole);
  std::vector<Quota::Share> shares;
  for (const auto& quota : {one, one, other}) {
    auto share = Quota::Take(quota, kFirst);
    ASSERT_TRUE(share.ok()) << share.status();
    shares.push_back(*std::move(share));
  }
  EXPECT_EQ(whole->taken(), 3U);
  EXPECT_THAT(WhyRefused(one, kFirst), HasSubstr("the first has 2 things; allowed: 2"));
  EXPECT_THAT(WhyRefused(other, kFirst), HasSubstr("the daemon has 3 things; allowed: 3"));
  // What is refused is counted nowhere.
  EXPECT_EQ(one->taken(), 2U);
  EXPECT_EQ(other->taken(), 1U);
  EXPECT_EQ(whole->taken(), 3U);
  shares.clear();
  EXPECT_EQ(one->taken() + other->taken() + whole->taken(), 0U);
}

TEST(QuotaTest, AShareThatWasMovedIsGivenBackOnce) {
  const auto quota = std::make_shared<Quota>("the daemon", "things", 3);
  std::optional<Quota::Share> kept;
  {
    auto share = Quota::Take(quota, kFirst);
    ASSERT_TRUE(share.ok());
    kept.emplace(*std::move(share));
  }
  EXPECT_EQ(quota->taken(), 1U);
  kept.reset();
  EXPECT_EQ(quota->taken(), 0U);
}

TEST(QuotaTest, KeepsAQuarterForFirstThings) {
  const auto quota = std::make_shared<Quota>("the daemon", "things", 8);
  std::vector<Quota::Share> shares;
  for (int i = 0; i < 6; ++i) {
    auto share = Quota::Take(quota, kFurther);
    ASSERT_TRUE(share.ok()) << share.status();
    shares.push_back(*std::move(share));
  }
  EXPECT_THAT(WhyRefused(quota, kFurther), HasSubstr("has 6 things; allowed: 6"));
  EXPECT_EQ(WhyRefused(quota, kFirst), "");
}

TEST(QuotaTest, ManyThreadsNeverHaveMoreThanTheLimit) {
  constexpr std::size_t kLimit = 3;
  const auto whole = std::make_shared<Quota>("the daemon", "things", kLimit);
  std::atomic<std::size_t> held = 0;
  std::atomic<int> exceeded = 0;
  std::atomic<int> taken = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const auto own = std::make_shared<Quota>("a thread", "things", 2, whole);
      for (int i = 0; i < 5000; ++i) {
        const auto share = Quota::Take(own, kFirst);
        if (!share.ok()) continue;
        ++taken;
        if (++held > kLimit) ++exceeded;
        --held;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(exceeded, 0);
  EXPECT_GT(taken, 0);
  EXPECT_EQ(whole->taken(), 0U);
}

}  // namespace
}  // namespace gradwire::server

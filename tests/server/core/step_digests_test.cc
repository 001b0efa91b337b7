// Which of a session's digests are kept, and how they are found.
#include "server/core/step_digests.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Entry = StepDigests::Entry;

constexpr std::size_t kAll = 100'000;

StepDigests Steps(std::int64_t first, std::int64_t end) {
  StepDigests digests;
  for (std::int64_t step = first; step < end; ++step) {
    digests.Append(step, static_cast<std::uint64_t>(step) + 7);
  }
  return digests;
}

TEST(StepDigests, FindsAndListsWhatItKeeps) {
  const StepDigests digests = Steps(3, 9);
  EXPECT_EQ(digests.Find(4), 11U);
  EXPECT_EQ(digests.Find(2), std::nullopt);
  EXPECT_EQ(digests.Find(9), std::nullopt);
  EXPECT_EQ(digests.Before(5), 11U);
  EXPECT_EQ(digests.Before(3), 0U);
  EXPECT_EQ(digests.Before(0), 0U);
  EXPECT_THAT(digests.Range(0, 2), ElementsAre(Entry{3, 10}, Entry{4, 11}));
  EXPECT_THAT(digests.Range(7, kAll), ElementsAre(Entry{7, 14}, Entry{8, 15}));
  EXPECT_THAT(digests.Range(9, kAll), IsEmpty());
  EXPECT_THAT(digests.Range(0, 0), IsEmpty());
}

TEST(StepDigests, KeepsTheLastStepsAndOfEarlierOnesEveryHundredth) {
  const StepDigests digests = Steps(0, 5000);
  const std::vector<Entry> all = digests.Range(0, kAll);
  ASSERT_EQ(all.size(), 10 + StepDigests::kRecent);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(all[i].step, static_cast<std::int64_t>(100 * i));
  EXPECT_EQ(all[10].step, 5000 - 4096);
  EXPECT_EQ(all.back().step, 4999);
  EXPECT_EQ(digests.Find(900), 907U);
  EXPECT_EQ(digests.Find(903), std::nullopt);
  EXPECT_EQ(digests.Find(904), 911U);
}

TEST(StepDigests, KeepsFewerOfTheEarlierOnesAsTheRunGoesOn) {
  constexpr std::int64_t kSteps = 1'000'000;
  const StepDigests digests = Steps(0, kSteps);
  const std::vector<Entry> all = digests.Range(0, kAll);
  EXPECT_LE(all.size(), StepDigests::kEarlier + StepDigests::kRecent);
  const std::size_t earlier = all.size() - StepDigests::kRecent;
  EXPECT_GT(earlier, StepDigests::kEarlier / 2);
  for (std::size_t i = 0; i < earlier; ++i) {
    EXPECT_EQ(all[i].step, static_cast<std::int64_t>(400 * i));
    EXPECT_EQ(all[i].chain, 400 * i + 7);
  }
  EXPECT_EQ(all[earlier].step, kSteps - 4096);
}

TEST(StepDigests, TwoRunsKeepTheSameEarlierStepsWhereverTheyBegan) {
  EXPECT_EQ(Steps(57, 5000).Find(700), 707U);
  EXPECT_EQ(Steps(0, 5000).Find(700), 707U);
  EXPECT_EQ(Steps(57, 5000).Find(757), std::nullopt);
}

TEST(StepDigests, ChainsTheStepsThatAreConcluded) {
  StepDigests digests;
  digests.Conclude({.step = 0, .digest = 5});
  digests.Conclude({.step = 1, .digest = 6});
  EXPECT_NE(digests.Before(1), 0U);
  EXPECT_NE(digests.Before(2), digests.Before(1));
  StepDigests next;
  next.GoOnFrom(1, digests.Before(1));
  EXPECT_EQ(next.Find(0), digests.Find(0));
  next.Conclude({.step = 1, .digest = 6});
  EXPECT_EQ(next.Find(1), digests.Find(1));
}

// After members of an earlier version.
TEST(StepDigests, KeepsNothingWhereTheChainIsNotKnown) {
  StepDigests digests;
  digests.GoOnFrom(4, 0);
  digests.Conclude({.step = 4, .digest = 5});
  EXPECT_EQ(digests.Before(4), 0U);
  EXPECT_EQ(digests.Before(5), 0U);
  EXPECT_THAT(digests.Range(0, kAll), IsEmpty());
}

}  // namespace
}  // namespace gradwire::server

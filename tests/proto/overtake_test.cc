#include "proto/wire/overtake.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::wire {
namespace {

using ::testing::ElementsAre;
using Kind = Weight::Kind;

constexpr std::size_t kLarge = kSmallPayload + 1;

Weight ResultOf(std::uint32_t bucket, std::size_t bytes) { return {Kind::kResult, bucket, bytes}; }

// What a queue looks like after `frames` were put into it one by one.
std::vector<Weight> Queued(const std::vector<Weight>& frames) {
  std::deque<Weight> queue;
  for (const Weight& frame : frames) {
    queue.insert(PlaceFor(queue, frame, [](const Weight& one) { return one; }), frame);
  }
  return {queue.begin(), queue.end()};
}

TEST(Overtake, KnowsWhatAFrameWeighs) {
  const RoundId id{.step = 1, .attempt = 0, .bucket = 7, .round = 0};
  const OwnedPayload payload(std::vector<std::byte>(100));
  Announce eager;
  eager.eager = true;
  EXPECT_EQ(WeightOf(Result{.id = id}, &payload), ResultOf(7, 100));
  EXPECT_EQ(WeightOf(Result{.id = id}, nullptr), ResultOf(7, 0));
  EXPECT_EQ(WeightOf(Result{.id = id, .shared = SharedBytes{.bytes = 1000}}, nullptr),
            ResultOf(7, 1000));
  EXPECT_EQ(WeightOf(Contribution{.id = id}, &payload), Weight{.kind = Kind::kContribution});
  EXPECT_EQ(WeightOf(eager, &payload), Weight{.kind = Kind::kEagerAnnounce});
  EXPECT_EQ(WeightOf(Announce{}, nullptr), Weight{});
  EXPECT_EQ(WeightOf(StepDone{}, nullptr), Weight{});
}

TEST(Overtake, ASmallResultPassesLargeOnesOfOtherBuckets) {
  const Weight a = ResultOf(1, kLarge);
  const Weight b = ResultOf(2, kLarge);
  const Weight small = ResultOf(3, kSmallPayload);
  EXPECT_THAT(Queued({a, b, small}), ElementsAre(small, a, b));
}

TEST(Overtake, SmallResultsKeepTheirOrder) {
  const Weight bulk = ResultOf(1, kLarge);
  const Weight first = ResultOf(2, 10);
  const Weight second = ResultOf(3, 10);
  EXPECT_THAT(Queued({bulk, first, second}), ElementsAre(first, second, bulk));
}

TEST(Overtake, TheLastChunkOfABucketStaysBehindTheOthers) {
  const Weight chunk = ResultOf(1, kLarge);
  const Weight other = ResultOf(2, kLarge);
  const Weight tail = ResultOf(1, 10);
  EXPECT_THAT(Queued({chunk, other, tail}), ElementsAre(chunk, tail, other));
}

TEST(Overtake, NothingPassesWhatIsNoResult) {
  const Weight done{};
  const Weight bulk = ResultOf(1, kLarge);
  const Weight small = ResultOf(2, 10);
  EXPECT_THAT(Queued({bulk, done, small}), ElementsAre(bulk, done, small));
  EXPECT_THAT(Queued({small, done, bulk}), ElementsAre(small, done, bulk));
}

TEST(Overtake, AnEagerAnnouncementPassesContributions) {
  const Weight chunk{Kind::kContribution, 1, kLarge};
  const Weight eager{Kind::kEagerAnnounce, 0, 10};
  const Weight ack{};
  EXPECT_THAT(Queued({chunk, chunk, eager}), ElementsAre(eager, chunk, chunk));
  EXPECT_THAT(Queued({chunk, ack, eager}), ElementsAre(chunk, ack, eager));
}

// Whatever comes: frames of one bucket, and all that are no payloads, keep their order; a frame
// that passed another one was allowed to.
TEST(Overtake, RandomQueuesKeepEveryOrderThatMatters) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::pair<Weight, int>> came;
    std::deque<std::pair<Weight, int>> queue;
    for (int i = 0; i < 40; ++i) {
      const Weight weight{static_cast<Kind>(random() % 4), static_cast<std::uint32_t>(random() % 3),
                          random() % 2 == 0 ? kLarge : 10};
      came.emplace_back(weight, i);
      queue.insert(PlaceFor(queue, weight, [](const auto& one) { return one.first; }), came.back());
      if (random() % 4 == 0) queue.pop_front();
    }
    for (std::size_t i = 0; i < queue.size(); ++i) {
      for (std::size_t j = i + 1; j < queue.size(); ++j) {
        const auto& [first, first_came] = queue[i];
        const auto& [second, second_came] = queue[j];
        if (first_came < second_came) continue;
        ASSERT_TRUE(MayPass(first, second)) << first_came << " went before " << second_came;
        ASSERT_FALSE(first.kind == Kind::kResult && first.bucket == second.bucket);
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::wire

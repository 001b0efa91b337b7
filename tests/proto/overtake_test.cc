#include "proto/wire/overtake.h"

#include <algorithm>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"
#include "tests/proto/frame_samples.h"

namespace gradwire::wire {
namespace {

using ::testing::ElementsAre;
using Kind = Weight::Kind;
using Scope = Weight::Scope;

constexpr std::size_t kLarge = kSmallPayload + 1;

Weight OfBucket(std::uint32_t bucket, Kind kind = Kind::kOther, std::size_t bytes = 0) {
  return {.kind = kind, .scope = Scope::kBucket, .step = 41, .bucket = bucket, .bytes = bytes};
}
Weight ResultOf(std::uint32_t bucket, std::size_t bytes) {
  return OfBucket(bucket, Kind::kResult, bytes);
}

// What a queue looks like after `frames` were put into it one by one.
std::vector<Weight> Queued(const std::vector<Weight>& frames) {
  std::deque<Weight> queue;
  for (const Weight& frame : frames) {
    queue.insert(PlaceFor(queue, frame, [](const Weight& one) { return one; }), frame);
  }
  return {queue.begin(), queue.end()};
}

TEST(Overtake, KnowsWhatAFrameWeighs) {
  const Weight all{.scope = Scope::kAll};
  const Weight none{.scope = Scope::kNone};
  // In the order of the variant; the samples are of step 41 and bucket 300.
  const std::vector<Weight> expected = {
      all,                                      // Hello
      OfBucket(300),                            // Announce
      OfBucket(300, Kind::kContribution, 100),  //
      OfBucket(300),                            // Ack
      {.scope = Scope::kStep, .step = 41},      // EndStep
      none,                                     // Heartbeat
      none,                                     // Enter
      none,                                     // CollectiveChunk
      none,                                     // CollectiveAck
      all,                                      // Welcome
      OfBucket(300),                            // Grant
      ResultOf(300, 100),                       //
      all,                                      // StepDone
      all,                                      // Restart
      none,                                     // Failure
      none,                                     // Begin
      OfBucket(300),                            // SharedState
      all,                                      // StateReset
      none,                                     // BucketReport
  };
  const std::vector<Sample> samples = Samples();
  ASSERT_EQ(samples.size(), expected.size());
  const OwnedPayload payload(std::vector<std::byte>(100));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(WeightOf(samples[i].header, &payload), expected[i]) << samples[i].name;
  }
}

TEST(Overtake, AnEagerAnnouncementIsOfItsBucket) {
  const OwnedPayload payload(std::vector<std::byte>(100));
  Announce eager = SampleOf<Announce>();
  eager.eager = true;
  EXPECT_EQ(WeightOf(eager, &payload), OfBucket(300, Kind::kEagerAnnounce));
  eager.parameters.clear();
  EXPECT_EQ(WeightOf(eager, &payload), OfBucket(0, Kind::kEagerAnnounce));
}

TEST(Overtake, BytesCountWhereverTheyLie) {
  const SharedBytes shared{.bytes = 1000};
  Result result = SampleOf<Result>();
  Contribution contribution = SampleOf<Contribution>();
  EXPECT_EQ(WeightOf(result, nullptr), ResultOf(300, 0));
  EXPECT_EQ(WeightOf(contribution, nullptr), OfBucket(300, Kind::kContribution, 0));
  result.shared = shared;
  contribution.shared = shared;
  EXPECT_EQ(WeightOf(result, nullptr), ResultOf(300, 1000));
  EXPECT_EQ(WeightOf(contribution, nullptr), OfBucket(300, Kind::kContribution, 1000));
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
  const Weight chunk = OfBucket(1, Kind::kContribution, kLarge);
  const Weight eager = OfBucket(2, Kind::kEagerAnnounce);
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
      const Weight weight =
          OfBucket(static_cast<std::uint32_t>(random() % 3), static_cast<Kind>(random() % 4),
                   random() % 2 == 0 ? kLarge : 10);
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

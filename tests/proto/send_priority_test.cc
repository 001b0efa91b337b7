#include <algorithm>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/frame_priority.h"
#include "proto/wire/owned_payload.h"
#include "tests/proto/frame_samples.h"

namespace gradwire::wire {
namespace {

using ::testing::ElementsAre;
using Kind = SendPriority::Kind;
using Scope = SendPriority::Scope;

constexpr std::size_t kLarge = kSmallPayload + 1;

SendPriority OfBucket(std::uint32_t bucket, Kind kind = Kind::kOther, std::size_t bytes = 0) {
  return {.kind = kind, .scope = Scope::kBucket, .step = 41, .bucket = bucket, .bytes = bytes};
}
SendPriority ResultOf(std::uint32_t bucket, std::size_t bytes) {
  return OfBucket(bucket, Kind::kResult, bytes);
}

// What a queue looks like after `frames` were put into it one by one.
std::vector<SendPriority> Queued(const std::vector<SendPriority>& frames) {
  std::deque<SendPriority> queue;
  for (const SendPriority& frame : frames) {
    queue.insert(PlaceInQueue(queue, frame, [](const SendPriority& one) { return one; }), frame);
  }
  return {queue.begin(), queue.end()};
}

TEST(SendOrder, KnowsWhatAFrameWeighs) {
  const SendPriority all{.scope = Scope::kAll};
  const SendPriority none{.scope = Scope::kNone};
  // In the order of the variant; the samples are of step 41 and bucket 300.
  const std::vector<SendPriority> expected = {
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
      all,                                      // DrawPlan
      all,                                      // GroupBucket
      all,                                      // GroupId
      all,                                      // GroupOrder
      all,                                      // Prepared
      all,                                      // Ready
      all,                                      // Concluded
      all,                                      // CoordinatorState
      all,                                      // StateRequest
      all,                                      // StateCopy
      {.scope = Scope::kStep, .step = 41},      // ParameterDigest
      all,                                      // GatherAgain
      all,                                      // LedgerAccount
      all,                                      // LedgerTotal
      none,                                     // HandOver
      none,                                     // HandOverAnswer
      OfBucket(300),                            // Missed
      none,                                     // CollectiveVoid
  };
  const std::vector<Sample> samples = Samples();
  ASSERT_EQ(samples.size(), expected.size());
  const OwnedPayload payload(std::vector<std::byte>(100));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(PriorityOf(samples[i].header, &payload), expected[i]) << samples[i].name;
  }
}

TEST(SendOrder, AnEagerAnnouncementIsOfItsBucket) {
  const OwnedPayload payload(std::vector<std::byte>(100));
  Announce eager = SampleOf<Announce>();
  eager.eager = true;
  EXPECT_EQ(PriorityOf(eager, &payload), OfBucket(300, Kind::kEagerAnnounce));
  eager.parameters.clear();
  EXPECT_EQ(PriorityOf(eager, &payload), OfBucket(0, Kind::kEagerAnnounce));
}

TEST(SendOrder, BytesCountWhereverTheyLie) {
  const SharedBytes shared{.bytes = 1000};
  Result result = SampleOf<Result>();
  Contribution contribution = SampleOf<Contribution>();
  EXPECT_EQ(PriorityOf(result, nullptr), ResultOf(300, 0));
  EXPECT_EQ(PriorityOf(contribution, nullptr), OfBucket(300, Kind::kContribution, 0));
  result.shared = shared;
  contribution.shared = shared;
  EXPECT_EQ(PriorityOf(result, nullptr), ResultOf(300, 1000));
  EXPECT_EQ(PriorityOf(contribution, nullptr), OfBucket(300, Kind::kContribution, 1000));
}

TEST(SendOrder, ASmallResultPassesLargeOnesOfOtherBuckets) {
  const SendPriority a = ResultOf(1, kLarge);
  const SendPriority b = ResultOf(2, kLarge);
  const SendPriority small = ResultOf(3, kSmallPayload);
  EXPECT_THAT(Queued({a, b, small}), ElementsAre(small, a, b));
}

TEST(SendOrder, SmallResultsKeepTheirOrder) {
  const SendPriority bulk = ResultOf(1, kLarge);
  const SendPriority first = ResultOf(2, 10);
  const SendPriority second = ResultOf(3, 10);
  EXPECT_THAT(Queued({bulk, first, second}), ElementsAre(first, second, bulk));
}

TEST(SendOrder, TheLastChunkOfABucketStaysBehindTheOthers) {
  const SendPriority chunk = ResultOf(1, kLarge);
  const SendPriority other = ResultOf(2, kLarge);
  const SendPriority tail = ResultOf(1, 10);
  EXPECT_THAT(Queued({chunk, other, tail}), ElementsAre(chunk, tail, other));
}

TEST(SendOrder, NothingPassesWhatIsNoResult) {
  const SendPriority done{};
  const SendPriority bulk = ResultOf(1, kLarge);
  const SendPriority small = ResultOf(2, 10);
  EXPECT_THAT(Queued({bulk, done, small}), ElementsAre(bulk, done, small));
  EXPECT_THAT(Queued({small, done, bulk}), ElementsAre(small, done, bulk));
}

TEST(SendOrder, AnEagerAnnouncementPassesContributions) {
  const SendPriority chunk = OfBucket(1, Kind::kContribution, kLarge);
  const SendPriority eager = OfBucket(2, Kind::kEagerAnnounce);
  const SendPriority ack{};
  EXPECT_THAT(Queued({chunk, chunk, eager}), ElementsAre(eager, chunk, chunk));
  EXPECT_THAT(Queued({chunk, ack, eager}), ElementsAre(chunk, ack, eager));
}

// Whatever comes: frames of one bucket, and all that are no payloads, keep their order; a frame
// that passed another one was allowed to.
TEST(SendOrder, RandomQueuesKeepEveryOrderThatMatters) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::pair<SendPriority, int>> came;
    std::deque<std::pair<SendPriority, int>> queue;
    for (int i = 0; i < 40; ++i) {
      const SendPriority priority =
          OfBucket(static_cast<std::uint32_t>(random() % 3), static_cast<Kind>(random() % 4),
                   random() % 2 == 0 ? kLarge : 10);
      came.emplace_back(priority, i);
      queue.insert(PlaceInQueue(queue, priority, [](const auto& one) { return one.first; }),
                   came.back());
      if (random() % 4 == 0) queue.pop_front();
    }
    for (std::size_t i = 0; i < queue.size(); ++i) {
      for (std::size_t j = i + 1; j < queue.size(); ++j) {
        const auto& [first, first_came] = queue[i];
        const auto& [second, second_came] = queue[j];
        if (first_came < second_came) continue;
        ASSERT_TRUE(GoesBefore(first, second)) << first_came << " went before " << second_came;
        ASSERT_FALSE(first.kind == Kind::kResult && first.bucket == second.bucket);
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::wire

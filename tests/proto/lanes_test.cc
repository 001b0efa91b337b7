#include "proto/wire/lanes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "proto/wire/frame_priority.h"
#include "tests/proto/frame_samples.h"

namespace gradwire::wire {
namespace {

using Kind = SendPriority::Kind;
using Scope = SendPriority::Scope;

constexpr std::size_t kLarge = kSmallPayload + 1;
constexpr SendPriority kAll{.scope = Scope::kAll};
constexpr SendPriority kNone{.scope = Scope::kNone};
constexpr SendPriority kEndStep{.scope = Scope::kStep, .step = 1};

SendPriority OfBucket(std::uint32_t bucket, Kind kind = Kind::kOther, std::size_t bytes = 0,
                      std::int64_t step = 1) {
  return {.kind = kind, .scope = Scope::kBucket, .step = step, .bucket = bucket, .bytes = bytes};
}
SendPriority ResultOf(std::uint32_t bucket, std::size_t bytes, std::int64_t step = 1) {
  return OfBucket(bucket, Kind::kResult, bytes, step);
}
SendPriority ChunkOf(std::uint32_t bucket, std::size_t bytes, std::int64_t step = 1) {
  return OfBucket(bucket, Kind::kContribution, bytes, step);
}

// An order with so many large results of bucket 1 on their way, in step 1.
LaneOrder WithBulk(int results) {
  LaneOrder order;
  for (int i = 0; i < results; ++i) {
    EXPECT_EQ(order.Next(ResultOf(1, kLarge)).lane, Lane::kBulk);
  }
  return order;
}

void ExpectPlace(LaneOrder& order, const SendPriority& priority, Lane lane, std::uint64_t after) {
  const LaneOrder::Place place = order.Next(priority);
  EXPECT_EQ(place.lane, lane);
  EXPECT_EQ(place.after, after);
}

TEST(Lanes, OnlyLargeContributionsAndResultsTakeTheBulkLane) {
  const PayloadRef large = MakePayload(Pattern(kLarge));
  const PayloadRef small = MakePayload(Pattern(kSmallPayload));
  for (const Sample& sample : AllSamples()) {
    const bool carries = std::holds_alternative<Contribution>(sample.header) ||
                         std::holds_alternative<Result>(sample.header);
    // Theirs lies in shared memory and is small.
    const bool elsewhere = sample.name == "contribution_shared" ||
                           sample.name == "contribution_taking" || sample.name == "result_shared";
    EXPECT_EQ(LaneOrder().Next(PriorityOf(sample.header, large.get())).lane,
              carries && !elsewhere ? Lane::kBulk : Lane::kMain)
        << sample.name;
    EXPECT_EQ(LaneOrder().Next(PriorityOf(sample.header, small.get())).lane, Lane::kMain)
        << sample.name;
  }
}

TEST(Lanes, ABucketsLastShortChunkFollowsItsLargeOnes) {
  LaneOrder order;
  ExpectPlace(order, OfBucket(1), Lane::kMain, 0);
  ExpectPlace(order, ChunkOf(1, kLarge), Lane::kBulk, 1);
  ExpectPlace(order, ChunkOf(2, 10), Lane::kMain, 0);
  ExpectPlace(order, ChunkOf(1, 10), Lane::kBulk, 1);
  ExpectPlace(order, ChunkOf(1, 10, 2), Lane::kMain, 2);  // in another step it is like any other
}

TEST(Lanes, AShortChunkBeforeTheLargeOnesIsNotOvertaken) {
  LaneOrder order;
  ExpectPlace(order, ResultOf(1, 10), Lane::kMain, 0);
  ExpectPlace(order, ResultOf(2, 10), Lane::kMain, 0);
  ExpectPlace(order, ResultOf(1, kLarge), Lane::kBulk, 1);
  ExpectPlace(order, ResultOf(2, kLarge), Lane::kBulk, 2);
}

TEST(Lanes, ABucketsSmallFramesWaitForItsBulkOnly) {
  LaneOrder order;
  ExpectPlace(order, ResultOf(1, kLarge), Lane::kBulk, 0);
  ExpectPlace(order, ResultOf(2, kLarge), Lane::kBulk, 0);
  ExpectPlace(order, ResultOf(2, kLarge), Lane::kBulk, 0);
  ExpectPlace(order, OfBucket(1), Lane::kMain, 1);
  ExpectPlace(order, OfBucket(2), Lane::kMain, 3);
}

TEST(Lanes, ASmallBucketDoesNotWaitForTheBulkOfOthers) {
  LaneOrder order = WithBulk(3);
  ExpectPlace(order, OfBucket(2), Lane::kMain, 0);
  ExpectPlace(order, OfBucket(2, Kind::kEagerAnnounce), Lane::kMain, 0);
  ExpectPlace(order, ResultOf(2, kSmallPayload), Lane::kMain, 0);
  ExpectPlace(order, kEndStep, Lane::kMain, 0);
}

TEST(Lanes, WhatIsAboutTheSessionWaitsForAllBulk) {
  LaneOrder order = WithBulk(3);
  ExpectPlace(order, PriorityOf(SampleOf<StepDone>(), nullptr), Lane::kMain, 3);
  ExpectPlace(order, ResultOf(1, kLarge), Lane::kBulk, 1);
  ExpectPlace(order, kAll, Lane::kMain, 4);
}

TEST(Lanes, WhatStandsAloneWaitsForNothing) {
  const Header alone[] = {SampleOf<Failure>(),         SampleOf<Heartbeat>(),
                          SampleOf<Enter>(),           SampleOf<Begin>(),
                          SampleOf<CollectiveChunk>(), SampleOf<CollectiveAck>(),
                          SampleOf<BucketReport>()};
  for (const Header& header : alone) {
    LaneOrder order = WithBulk(3);
    ExpectPlace(order, PriorityOf(header, nullptr), Lane::kMain, 0);
  }
}

TEST(Lanes, NothingWaitsForWhatStandsAlone) {
  LaneOrder order;
  ExpectPlace(order, ResultOf(1, kLarge), Lane::kBulk, 0);
  ExpectPlace(order, kNone, Lane::kMain, 0);
  order.Count(Lane::kMain);
  ExpectPlace(order, ResultOf(1, kLarge), Lane::kBulk, 0);
  ExpectPlace(order, OfBucket(1), Lane::kMain, 2);
  ExpectPlace(order, ResultOf(1, kLarge), Lane::kBulk, 3);
}

TEST(Lanes, AStepsFirstFrameComesAfterEverything) {
  LaneOrder order = WithBulk(3);
  ExpectPlace(order, OfBucket(1, Kind::kOther, 0, 2), Lane::kMain, 3);
  ExpectPlace(order, ChunkOf(1, kLarge, 2), Lane::kBulk, 1);
  ExpectPlace(order, ChunkOf(4, kLarge, 3), Lane::kBulk, 1);
  ExpectPlace(order, OfBucket(5, Kind::kOther, 0, 3), Lane::kMain, 4);  // not after the 5th
  ExpectPlace(order, ChunkOf(6, kLarge, 3), Lane::kBulk, 1);
}

TEST(Lanes, AFrameOfAnEarlierStepKeepsItsPlace) {
  LaneOrder order;
  ExpectPlace(order, ChunkOf(1, kLarge, 2), Lane::kBulk, 0);
  ExpectPlace(order, OfBucket(1, Kind::kOther, 0, 1), Lane::kMain, 1);
  ExpectPlace(order, ChunkOf(2, kLarge, 2), Lane::kBulk, 1);
  ExpectPlace(order, ChunkOf(1, kLarge, 1), Lane::kBulk, 1);
  ExpectPlace(order, OfBucket(3, Kind::kOther, 0, 2), Lane::kMain, 3);
}

TEST(Lanes, AGateHoldsAFrameUntilTheOtherLanesWereTaken) {
  ReorderGate gate;
  EXPECT_TRUE(gate.MayTake(Lane::kMain, 0));
  EXPECT_FALSE(gate.MayTake(Lane::kMain, 1));
  gate.Take(Lane::kMain);
  EXPECT_FALSE(gate.MayTake(Lane::kMain, 1)) << "its own do not count";
  gate.Take(Lane::kBulk);
  EXPECT_TRUE(gate.MayTake(Lane::kMain, 1));
  EXPECT_FALSE(gate.MayTake(Lane::kMain, 2));
  EXPECT_FALSE(gate.MayTake(Lane::kBulk, ~std::uint64_t{0}));
}

// ---- Whatever is sent, and however it arrives

struct Sent {
  SendPriority priority;
  LaneOrder::Place place;
  std::size_t number = 0;
};

SendPriority RandomPriority(std::mt19937& random, std::int64_t& step) {
  if (random() % 12 == 0) ++step;
  const std::int64_t at = random() % 25 == 0 ? std::max<std::int64_t>(0, step - 1) : step;
  switch (random() % 16) {
    case 0:
      return random() % 3 == 0 ? kAll : kNone;
    case 1:
      return {.scope = Scope::kStep, .step = at};
    case 2:
      return kNone;
    default:
      return OfBucket(static_cast<std::uint32_t>(random() % 5), static_cast<Kind>(random() % 4),
                      random() % 2 == 0 ? kLarge : 10, at);
  }
}

// The promise of lanes.h, in the terms of frames and not of counts.
bool MustKeepOrder(const SendPriority& early, const SendPriority& late) {
  if (early.scope == Scope::kNone || late.scope == Scope::kNone) return false;
  if (early.scope == Scope::kAll || late.scope == Scope::kAll) return true;
  if (early.step != late.step) return true;
  return early.scope == Scope::kBucket && late.scope == Scope::kBucket &&
         early.bucket == late.bucket;
}

std::vector<Sent> Send(std::size_t frames, std::mt19937& random) {
  LaneOrder order;
  std::vector<Sent> sent;
  std::int64_t step = 0;
  for (std::size_t i = 0; i < frames; ++i) {
    const SendPriority priority = RandomPriority(random, step);
    sent.push_back({priority, order.Next(priority), i});
  }
  return sent;
}

// In the order they are taken. Of two heads that may be taken, the main lane's is in 1 of `main`
// cases; fewer than were sent: stuck.
std::vector<Sent> TakeAll(const std::vector<Sent>& sent, unsigned main, std::mt19937& random) {
  std::array<std::deque<Sent>, kLanes> lanes;
  for (const Sent& one : sent) lanes[Index(one.place.lane)].push_back(one);
  ReorderGate gate;
  std::vector<Sent> taken;
  const auto may_take = [&](Lane lane) {
    const std::deque<Sent>& queue = lanes[Index(lane)];
    return !queue.empty() && gate.MayTake(lane, queue.front().place.after);
  };
  while (may_take(Lane::kMain) || may_take(Lane::kBulk)) {
    Lane lane = random() % main == 0 ? Lane::kMain : Lane::kBulk;
    if (!may_take(lane)) lane = Other(lane);
    taken.push_back(lanes[Index(lane)].front());
    lanes[Index(lane)].pop_front();
    gate.Take(lane);
  }
  return taken;
}

TEST(Lanes, RandomFramesKeepEveryOrderThatMatters) {
  std::mt19937 random(11);
  constexpr int kRuns = 2000;
  int overtaking_runs = 0;
  for (int run = 0; run < kRuns; ++run) {
    const std::vector<Sent> sent = Send(1 + random() % 60, random);
    const std::vector<Sent> taken = TakeAll(sent, 1 + random() % 4, random);
    ASSERT_EQ(taken.size(), sent.size()) << "stuck in run " << run;
    bool overtaken = false;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      for (std::size_t j = i + 1; j < taken.size(); ++j) {
        if (taken[i].number < taken[j].number) continue;
        const Sent& late = taken[i];  // was sent after the other one
        const Sent& early = taken[j];
        ASSERT_NE(late.place.lane, early.place.lane) << "run " << run;
        ASSERT_FALSE(MustKeepOrder(early.priority, late.priority))
            << "run " << run << ": " << late.number << " went before " << early.number;
        overtaken = overtaken || late.place.lane == Lane::kMain;
      }
    }
    overtaking_runs += overtaken ? 1 : 0;
  }
  EXPECT_GE(overtaking_runs, kRuns / 2);
}

// With the bulk lane standing still, what is taken of a step is all that waits for none of it.
TEST(Lanes, SmallBucketsPassABulkLaneThatStandsStill) {
  std::mt19937 random(12);
  for (int run = 0; run < 500; ++run) {
    LaneOrder order;
    ReorderGate gate;
    order.Next(OfBucket(0));
    gate.Take(Lane::kMain);
    for (int i = 0; i < 30; ++i) {
      // Even buckets are large, odd ones small.
      const auto bucket = static_cast<std::uint32_t>(random() % 6);
      const bool large = bucket % 2 == 0;
      const SendPriority priority =
          random() % 8 == 0 ? kEndStep : ResultOf(bucket, large ? kLarge : 10);
      const LaneOrder::Place place = order.Next(priority);
      ASSERT_EQ(place.lane == Lane::kBulk, priority.scope == Scope::kBucket && large);
      if (place.lane == Lane::kBulk) continue;
      ASSERT_TRUE(gate.MayTake(Lane::kMain, place.after)) << "run " << run;
      gate.Take(Lane::kMain);
    }
  }
}

}  // namespace
}  // namespace gradwire::wire

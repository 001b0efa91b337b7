// What waits for a member: in which order, and how much of it.
#include "server/services/send_queue.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/codec.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using wire::Lane;

constexpr std::size_t kLarge = std::size_t{1} << 20;
constexpr SendQueue::Limits kLimits = {.max_bytes = 4 * kLarge, .max_frames = 100};

wire::PayloadRef Bytes(std::size_t count) {
  return wire::OwnedPayload::Make(std::vector<std::byte>(count, std::byte{7}));
}

Outgoing ResultFrame(const ResultRef& result, std::uint32_t bucket, std::uint32_t chunk = 0) {
  const wire::Result header{.id = {.bucket = bucket}, .chunk = chunk};
  return {header, result, result->DeliveryTo({})};
}

// Where only the member has it.
class FarResult final : public ReducedResult {
 public:
  explicit FarResult(int& copies) : copies_(copies) {}
  std::size_t bytes() const override { return kLarge; }
  std::uint64_t digest() const override { return 1; }
  wire::PayloadRef kept() const override { return nullptr; }
  ResultDelivery DeliveryTo(const Receiver&) const override {
    return ResentCopy{[this] {
      ++copies_;
      return Bytes(kLarge);
    }};
  }

 private:
  int& copies_;
};

std::vector<std::uint32_t> BucketsTaken(SendQueue& queue, Lane lane) {
  std::vector<std::uint32_t> buckets;
  for (auto ready = queue.Take(lane); !ready.empty(); ready = queue.Take(lane)) {
    EXPECT_EQ(ready.size(), 1U);
    buckets.push_back(std::get<wire::Result>(ready.front().item.header()).id.bucket);
    queue.Written(lane);
  }
  return buckets;
}

TEST(SendQueue, SmallResultsPassLargeOnesOfOtherBuckets) {
  SendQueue queue(kLimits);
  const ResultRef large = KeptResult::Make(Bytes(kLarge));
  const ResultRef small = KeptResult::Make(Bytes(64));
  for (const std::uint32_t bucket : {1U, 2U}) {
    ASSERT_TRUE(queue.Add(ResultFrame(large, bucket)).ok());
  }
  ASSERT_TRUE(queue.Add(ResultFrame(small, 3)).ok());
  ASSERT_TRUE(queue.Add(ResultFrame(small, 1)).ok());
  EXPECT_THAT(BucketsTaken(queue, Lane::kMain), ElementsAre(3, 1, 1, 2));
}

TEST(SendQueue, WithTwoLanesLargeOnesHaveTheirOwn) {
  SendQueue queue(kLimits);
  queue.UseBothLanes();
  ASSERT_TRUE(queue.Add(ResultFrame(KeptResult::Make(Bytes(kLarge)), 1)).ok());
  ASSERT_TRUE(queue.Add(ResultFrame(KeptResult::Make(Bytes(64)), 2)).ok());
  ASSERT_TRUE(queue.Add(Outgoing(wire::StepDone{}, nullptr)).ok());
  EXPECT_EQ(queue.Take(Lane::kMain).front().after, 0U);
  queue.Written(Lane::kMain);
  EXPECT_EQ(queue.Take(Lane::kMain).front().after, 1U);  // after the large result
  queue.Written(Lane::kMain);
  EXPECT_THAT(queue.Take(Lane::kMain), IsEmpty());
  EXPECT_THAT(BucketsTaken(queue, Lane::kBulk), ElementsAre(1));
}

// As many as there are, in one backlog, and no byte of them is copied before its turn.
TEST(SendQueue, CopiesOfResultsInPlaceAreMadeOneByOne) {
  SendQueue queue(kLimits);
  int copies = 0;
  const ResultRef far = std::make_shared<const FarResult>(copies);
  for (std::uint32_t chunk = 0; chunk < 50; ++chunk) {
    ASSERT_TRUE(queue.Add(ResultFrame(far, 1, chunk)).ok());
  }
  EXPECT_EQ(copies, 0);
  const auto first = queue.Take(Lane::kMain);
  ASSERT_EQ(first.size(), 1U);
  const auto frame = wire::Parse(first.front().item.Serialize(0), {});
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->payload->bytes(), kLarge);
  EXPECT_EQ(copies, 1);
}

TEST(SendQueue, SeveralFramesLeaveTogether) {
  SendQueue queue(kLimits);
  for (std::uint32_t chunk = 0; chunk < 5; ++chunk) {
    ASSERT_TRUE(queue.Add(ResultFrame(KeptResult::Make(Bytes(1000)), 1, chunk)).ok());
  }
  EXPECT_EQ(queue.Take(Lane::kMain, 3800).size(), 3U);
  EXPECT_THAT(queue.Take(Lane::kMain, 3800), IsEmpty()) << "a write is in flight";
  queue.Written(Lane::kMain);
  EXPECT_EQ(queue.Take(Lane::kMain, 1).size(), 1U) << "the first one has any size";
  queue.Written(Lane::kMain);
  EXPECT_EQ(queue.Take(Lane::kMain, 1 << 20).size(), 1U);
}

TEST(SendQueue, WhatTheSessionKeepsMayWaitInAnyNumber) {
  SendQueue queue(kLimits);
  std::vector<ResultRef> kept;
  for (std::uint32_t chunk = 0; chunk < 20; ++chunk) {
    kept.push_back(KeptResult::Make(Bytes(kLarge)));
    ASSERT_TRUE(queue.Add(ResultFrame(kept.back(), 1, chunk)).ok());
  }
  // Acknowledged unread: now only the queue holds them.
  kept.clear();
  const ResultRef next = KeptResult::Make(Bytes(kLarge));
  absl::Status status;
  for (std::uint32_t chunk = 20; status.ok() && chunk < 30; ++chunk) {
    status = queue.Add(ResultFrame(next, 1, chunk));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 4194304 bytes wait for it"));
}

TEST(SendQueue, WhatTheSessionNeverKeptIsCounted) {
  SendQueue queue(kLimits);
  int added = 0;
  const auto chunk = [] { return Outgoing(wire::CollectiveChunk{}, Bytes(kLarge)); };
  while (added < 20 && queue.Add(chunk()).ok()) ++added;
  EXPECT_GE(added, 4);
  EXPECT_LE(added, 6);  // a quarter more between two counts
  // One that reads gets on.
  for (int i = 0; i < added; ++i) {
    ASSERT_EQ(queue.Take(Lane::kMain).size(), 1U);
    queue.Written(Lane::kMain);
  }
  EXPECT_TRUE(queue.Add(chunk()).ok());
}

TEST(SendQueue, FramesHaveALimitOfTheirOwn) {
  SendQueue queue(kLimits);
  for (std::size_t i = 0; i < kLimits.max_frames; ++i) {
    ASSERT_TRUE(queue.Add(Outgoing(wire::Grant{}, nullptr)).ok());
  }
  EXPECT_THAT(std::string(queue.Add(Outgoing(wire::Grant{}, nullptr)).message()),
              HasSubstr("more than 100 frames wait for it"));
}

}  // namespace
}  // namespace gradwire::server

// One reduction of one bucket, without frames and names.
#include "server/core/round.h"

#include <cstring>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::size_t kChunk = 64;

wire::PayloadRef Bytes(std::size_t count, int value) {
  return wire::OwnedPayload::Make(std::vector<std::byte>(count, static_cast<std::byte>(value)));
}

// Takes its result.
class Place final : public wire::Payload {
 public:
  std::span<const std::span<const std::byte>> pieces() const override { return {&piece_, 1}; }
  std::size_t bytes() const override { return kChunk; }
  bool fixed() const override { return false; }
  const wire::ResultRoom* result_room() const override { return &room_; }

 private:
  std::vector<std::byte> content_ = std::vector<std::byte>(kChunk);
  std::span<const std::byte> piece_ = content_;
  wire::ResultRoom room_ = {.bytes = content_};
};

// Of `chunks` whole chunks of float32, with a window of 2.
Round MakeRound(std::vector<std::uint32_t> weights, std::uint32_t chunks) {
  const RoundPlan plan{
      {Segment{DType::kFloat32, chunks * kChunk / sizeof(float), ReduceOp::kMean}}};
  return {3, wire::ChunkLayout(plan, kChunk),
          std::make_shared<const Contributors>(std::move(weights)), 2};
}

Round::Stored Store(Round& round, int rank, std::uint32_t chunk, int value = 1) {
  const wire::PayloadRef payload = Bytes(kChunk, value);
  return round.Store(rank, chunk, {.payload = payload, .digest = payload->digest()});
}

bool IsComplete(const Round& round, std::uint32_t chunk) {
  return round.IsComplete(round.layout().UnitOf(chunk), round.contributors().count());
}

void Reduce(Round& round, std::uint32_t chunk) {
  const Round::Unit unit = round.layout().UnitOf(chunk);
  round.BeginReduction(unit);
  round.SetResult(unit, KeptResult::Make(Bytes(kChunk, 9)), 0);
}

// The set decides, not the number of members: of three, one does not contribute.
TEST(Round, IsCompleteWhenItsContributorsHaveSent) {
  Round round = MakeRound({1, 0, 4}, 1);
  EXPECT_EQ(round.contributors().count(), 2U);
  EXPECT_EQ(round.contributors().total_weight(), 5);
  Store(round, 0, 0);
  EXPECT_FALSE(IsComplete(round, 0));
  Store(round, 2, 0);
  EXPECT_TRUE(IsComplete(round, 0));
  EXPECT_THAT(round.BeginReduction(round.layout().UnitOf(0)).payloads, SizeIs(2));
  EXPECT_FALSE(IsComplete(round, 0));
}

TEST(Round, ChunksOfAWindowComeInAnyOrder) {
  Round round = MakeRound({1, 1}, 2);
  EXPECT_EQ(Store(round, 0, 1, 7), Round::Stored::kFirst);
  EXPECT_EQ(Store(round, 1, 0, 4), Round::Stored::kFirst);
  EXPECT_FALSE(IsComplete(round, 0));
  EXPECT_FALSE(IsComplete(round, 1));
  EXPECT_EQ(Store(round, 1, 1, 8), Round::Stored::kFirst);
  EXPECT_TRUE(IsComplete(round, 1));
  EXPECT_FALSE(IsComplete(round, 0));
  EXPECT_EQ(Store(round, 0, 0, 3), Round::Stored::kFirst);
  ASSERT_TRUE(IsComplete(round, 0));
  // Each in its place, and by rank.
  std::vector<std::vector<int>> values;
  for (const std::uint32_t chunk : {0U, 1U}) {
    std::vector<int>& own = values.emplace_back();
    for (const auto& payload : round.BeginReduction(round.layout().UnitOf(chunk)).payloads) {
      own.push_back(static_cast<int>(payload->pieces().front().front()));
    }
  }
  EXPECT_THAT(values, ElementsAre(ElementsAre(3, 4), ElementsAre(7, 8)));
}

TEST(Round, AContributionCountsOnceHoweverOftenItComes) {
  Round round = MakeRound({1, 1}, 1);
  EXPECT_EQ(Store(round, 0, 0, 5), Round::Stored::kFirst);
  EXPECT_EQ(Store(round, 0, 0, 5), Round::Stored::kAgain);
  EXPECT_EQ(Store(round, 0, 0, 6), Round::Stored::kAnother);
  EXPECT_FALSE(IsComplete(round, 0));
  Store(round, 1, 0);
  Reduce(round, 0);
  // The bytes are gone, their digest is not.
  EXPECT_EQ(Store(round, 0, 0, 5), Round::Stored::kAgain);
  EXPECT_EQ(Store(round, 0, 0, 6), Round::Stored::kAnother);
  round.ForgetContributions();
  EXPECT_EQ(Store(round, 0, 0, 6), Round::Stored::kFirst);
}

TEST(Round, ReleasesInOrderAndKeepsUntilAllHaveIt) {
  Round round = MakeRound({1, 1}, 2);
  for (const std::uint32_t chunk : {0U, 1U}) {
    for (const int rank : {0, 1}) Store(round, rank, chunk);
  }
  EXPECT_FALSE(round.goes_on());
  Reduce(round, 1);
  EXPECT_TRUE(round.goes_on());
  EXPECT_EQ(round.ReleaseNext(), std::nullopt);
  Reduce(round, 0);
  EXPECT_EQ(round.ReleaseNext(), 0U);
  EXPECT_EQ(round.ReleaseNext(), 1U);
  EXPECT_EQ(round.ReleaseNext(), std::nullopt);
  EXPECT_TRUE(round.finished());
  EXPECT_EQ(round.held_bytes(), 2 * kChunk);
  round.Acknowledge(0, 2);
  EXPECT_EQ(round.held_bytes(), 2 * kChunk);
  round.Acknowledge(1, 1);
  EXPECT_EQ(round.held_bytes(), kChunk);
  EXPECT_TRUE(round.HasAll(0));
  EXPECT_FALSE(round.HasAll(1));
  EXPECT_FALSE(round.AllHaveAll());
  std::vector<ResultRef> kept;
  round.TakeResults(kept);
  EXPECT_THAT(kept, SizeIs(1));
}

// A member that takes results in place may be ahead of its window; what others keep of them may
// not.
TEST(Round, AResultThatIsKeptWaitsForEveryWindow) {
  Round round = MakeRound({1, 1}, 3);
  EXPECT_TRUE(round.InWindow(0, 1));
  EXPECT_FALSE(round.InWindow(0, 2));
  round.Store(0, 2, {.payload = std::make_shared<Place>(), .digest = {}, .raw = true});
  Store(round, 1, 2);
  const Round::Unit last = round.layout().UnitOf(2);
  EXPECT_TRUE(IsComplete(round, 2));
  EXPECT_THAT(round.WindowsWithout(last, true), ElementsAre(0, 1));
  Round placed = MakeRound({1, 1}, 3);
  for (const int rank : {0, 1}) {
    placed.Store(rank, 2, {.payload = std::make_shared<Place>(), .digest = {}, .raw = true});
  }
  EXPECT_THAT(placed.WindowsWithout(last, true), IsEmpty());
  EXPECT_THAT(placed.WindowsWithout(last, false), ElementsAre(0, 1));
  EXPECT_EQ(placed.held_bytes(), 0U);
}

}  // namespace
}  // namespace gradwire::server

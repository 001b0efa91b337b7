#include "server/core/skip_blame.h"

#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"
#include "server/core/membership.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kChunk = 64;  // bytes: 16 floats

Manifest Model() {
  return {{.name = "first", .shape = {20}},
          {.name = "second", .shape = {4, 5}},
          {.name = "third", .shape = {8}}};
}

class SkipBlameTest : public ::testing::Test {
 protected:
  // Two of three members contribute, in chunks of 16 elements; `weights` are theirs.
  Bucket Make(std::vector<std::uint32_t> parameters, std::vector<RoundPlan> plans,
              std::vector<std::uint32_t> weights = {1, 0, 1}) {
    Bucket bucket(common_, std::make_shared<const Contributors>(std::move(weights)),
                  {.parameters = std::move(parameters), .plans = std::move(plans)}, /*attempt=*/0);
    for (int rank = 0; rank < 3; ++rank) {
      bucket.Announce(rank);
      bucket.Grant(rank);
    }
    bucket.Advance(0);
    return bucket;
  }
  static RoundPlan Sum(std::size_t numel) {
    return {{Segment{DType::kFloat32, numel, ReduceOp::kSum}}};
  }
  std::string Said() const { return blame_.Sentence(membership_); }

  const std::shared_ptr<const Bucket::Common> common_ = std::make_shared<const Bucket::Common>(
      Bucket::Common{.manifest = Model(), .chunk_bytes = kChunk, .window_chunks = 4});
  const Membership membership_{3, {}, absl::UnixEpoch()};
  SkipBlame blame_{nullptr};
};

TEST_F(SkipBlameTest, FiniteResultsSkipNothing) {
  blame_.Note(Make({0, 1}, {Sum(40)}), 0, {});
  EXPECT_FALSE(blame_.skips());
}

// The second contribution is rank 2's. Element 16 + 3 is of `first`, 16 + 4 of `second`.
TEST_F(SkipBlameTest, NamesRankCountsAndParameter) {
  const Bucket bucket = Make({0, 1}, {Sum(40)});
  blame_.Note(bucket, 1,
              {.finite = false,
               .sources = {{.contribution = 1, .element = 4, .nans = 2, .infinities = 1}}});
  EXPECT_TRUE(blame_.skips());
  EXPECT_EQ(Said(), "rank 2 contributed 2 NaN and 1 infinite value, first in \"second\"");
  blame_.Note(bucket, 1,
              {.finite = false, .sources = {{.contribution = 1, .element = 3, .nans = 1}}});
  EXPECT_EQ(Said(), "rank 2 contributed 3 NaN and 1 infinite value, first in \"first\"");
}

TEST_F(SkipBlameTest, OrderOfReductionsDoesNotMatter) {
  const Bucket one = Make({0, 1}, {Sum(40)});
  const Bucket other = Make({2}, {Sum(8)});
  const ReduceOutcome both{
      .finite = false,
      .sources = {{.contribution = 0, .infinities = 2}, {.contribution = 1, .nans = 1}}};
  blame_.Note(one, 2, both);
  blame_.Note(other, 0, both);
  const std::string said = Said();
  EXPECT_EQ(said,
            "rank 0 contributed 4 infinite values, first in \"second\"; rank 2 contributed 2 NaN, "
            "first in \"second\"");
  blame_.Reset();
  EXPECT_FALSE(blame_.skips());
  blame_.Note(other, 0, both);
  blame_.Note(one, 2, both);
  EXPECT_EQ(Said(), said);
}

TEST_F(SkipBlameTest, SumThatIsTooLargeNamesTheParameterOnly) {
  blame_.Note(Make({2}, {Sum(8)}), 0, {.finite = false});
  EXPECT_EQ(Said(),
            "all contributions are finite, but their sum is too large for its type in \"third\"");
}

// PowerSGD's segments: which element belongs to which parameter is the hook's to know.
TEST_F(SkipBlameTest, NamesTheBucketOfAHookWithSegmentsOfItsOwn) {
  const RoundPlan plan{
      {Segment{DType::kFloat32, 20, ReduceOp::kMean}, Segment{DType::kFloat32, 8, ReduceOp::kSum}}};
  blame_.Note(Make({0, 1}, {plan}), 0,
              {.finite = false, .sources = {{.contribution = 0, .nans = 1}}});
  EXPECT_EQ(Said(), "rank 0 contributed 1 NaN, first in bucket [first, second]");
}

// All members compute with the first round's result, so all their next contributions are spoiled.
TEST_F(SkipBlameTest, LaterRoundsOfASpoiledBucketBlameNobody) {
  Bucket bucket = Make({2}, {Sum(8), Sum(8)});
  blame_.Note(bucket, 0, {.finite = false, .sources = {{.contribution = 1, .nans = 1}}});
  const std::string said = Said();
  Round& round = bucket.round();
  round.SetResult(round.layout().UnitOf(0),
                  KeptResult::Make(wire::OwnedPayload::Make(std::vector<std::byte>(32))), 0);
  ASSERT_TRUE(round.ReleaseNext());
  bucket.Advance(0);
  ASSERT_EQ(bucket.round_number(), 1);
  blame_.Note(bucket, 0,
              {.finite = false,
               .sources = {{.contribution = 0, .nans = 8}, {.contribution = 1, .nans = 8}}});
  EXPECT_EQ(Said(), said);
}

TEST_F(SkipBlameTest, LogsALineOfAStepThatItSkips) {
  Effects effects;
  blame_.Log(7, membership_, effects);
  EXPECT_TRUE(effects.empty());
  blame_.Note(Make({2}, {Sum(8)}), 0,
              {.finite = false, .sources = {{.contribution = 1, .nans = 1}}});
  blame_.Log(7, membership_, effects);
  ASSERT_EQ(effects.size(), 1);
  const auto& line = std::get<LogEffect>(effects.front());
  EXPECT_EQ(line.message, "step 7 is skipped: rank 2 contributed 1 NaN, first in \"third\"");
  EXPECT_EQ(line.rank, 2);
}

}  // namespace
}  // namespace gradwire::server

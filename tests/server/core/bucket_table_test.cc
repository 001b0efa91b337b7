// Announcement, ownership and grants, without frames and contributions.
#include "server/core/bucket_table.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kMembers = 2;

RoundPlan Floats(std::size_t numel) { return {{Segment{DType::kFloat32, numel, ReduceOp::kSum}}}; }

class BucketTableTest : public ::testing::Test {
 protected:
  // The list is announced by these ranks.
  Bucket& Add(std::vector<std::uint32_t> parameters, const std::vector<int>& ranks,
              std::vector<RoundPlan> plans = {Floats(16)}) {
    Bucket& bucket = table_.Add(Bucket(common_, contributors_,
                                       {.step = step_,
                                        .parameters = std::move(parameters),
                                        .plans = std::move(plans),
                                        .order = order_++},
                                       /*attempt=*/0));
    for (const int rank : ranks) bucket.Announce(rank);
    return bucket;
  }
  // "bucket:rank" of each grant.
  std::vector<std::string> Open() {
    std::vector<std::string> granted;
    for (const BucketTable::Granted& one : table_.OpenNext()) {
      one.bucket->Grant(one.rank);
      granted.push_back(std::to_string(one.bucket->id()) + ":" + std::to_string(one.rank));
    }
    return granted;
  }
  std::string Check(std::vector<std::uint32_t> parameters,
                    std::vector<RoundPlan> rounds = {Floats(16)}) {
    return std::string(
        table_
            .CheckAnnouncement(
                {.step = step_, .parameters = std::move(parameters), .rounds = std::move(rounds)})
            .message());
  }

  const Manifest manifest_ = {
      {"w", {16}, DType::kFloat32}, {"b", {16}, DType::kFloat32}, {"e", {0}, DType::kFloat32}};
  const std::shared_ptr<const Bucket::Common> common_ = std::make_shared<const Bucket::Common>(
      Bucket::Common{.manifest = manifest_, .chunk_bytes = 64, .window_chunks = 1});
  const std::shared_ptr<const Contributors> contributors_ =
      std::make_shared<const Contributors>(std::vector<std::uint32_t>(kMembers, 1));
  BucketTable table_{manifest_, 1};
  std::int64_t step_ = 0;
  std::uint64_t order_ = 0;
};

// A bucket that a member has not announced yet is open all the same, and granted to it later.
TEST_F(BucketTableTest, OpensTheOldestForAllThatAnnouncedIt) {
  Add({1}, {0});
  Add({0}, {0, 1});
  EXPECT_THAT(Open(), ElementsAre("1:0"));
  EXPECT_THAT(Open(), IsEmpty());
  EXPECT_TRUE(table_.Find(0, 1)->is_open());
  EXPECT_FALSE(table_.Find(0, 0)->is_open());
}

TEST_F(BucketTableTest, TheNextOneOpensWhenAllHaveTheResults) {
  Bucket& first = Add({0}, {0, 1});
  Add({1}, {0, 1});
  EXPECT_THAT(Open(), ElementsAre("0:0", "0:1"));
  const Round::Unit unit = first.round().layout().UnitOf(0);
  first.round().BeginReduction(unit);
  first.round().SetResult(unit, KeptResult::Make(nullptr), 0);
  first.round().ReleaseNext();
  first.Advance(0);
  EXPECT_TRUE(first.reduced());
  first.AcknowledgeAll(0);
  table_.CloseAcknowledged(step_);
  EXPECT_THAT(Open(), IsEmpty());
  first.AcknowledgeAll(1);
  EXPECT_TRUE(first.IsAcknowledged());
  table_.CloseAcknowledged(step_);
  EXPECT_THAT(Open(), ElementsAre("1:0", "1:1"));
  EXPECT_NE(table_.Find(0, 0), nullptr);  // its step may need it
  table_.CloseAcknowledged(step_ + 1);
  EXPECT_EQ(table_.Find(0, 0), nullptr);
}

TEST_F(BucketTableTest, OneWithoutElementsWaitsForTheAnnouncementsOnly) {
  Bucket& empty = Add({2}, {0}, {Floats(0), Floats(0)});
  EXPECT_EQ(empty.rounds().size(), 2U);
  EXPECT_THAT(Open(), IsEmpty());
  empty.Advance(0);
  EXPECT_FALSE(empty.reduced());
  EXPECT_THAT(empty.Unannounced(), ElementsAre(1));
  empty.Announce(1);
  empty.Advance(0);
  EXPECT_TRUE(empty.reduced());
}

TEST_F(BucketTableTest, AParameterHasOneBucketInAStep) {
  Add({1, 0}, {0});
  EXPECT_EQ(Check({1, 0}), "");
  EXPECT_THAT(Check({0}), HasSubstr("but parameter w is in bucket [b, w] already"));
  EXPECT_THAT(Check({1}), HasSubstr("another member's is [b, w]"));
  EXPECT_THAT(Check({1, 0}, {Floats(3)}), HasSubstr("another member's are {16 float32 sum;}"));
  EXPECT_THAT(Check({2, 2}), HasSubstr("with a parameter twice"));
  EXPECT_THAT(Check({7}), HasSubstr("announced parameter 7; the manifest has 3"));
  table_.EndStep(step_++);
  EXPECT_EQ(Check({0}), "");
}

TEST_F(BucketTableTest, ProgressCountsTheStepsBuckets) {
  Add({2}, {0, 1}, {Floats(0)}).Advance(0);
  EXPECT_TRUE(table_.ProgressOf(0).all_reduced);
  EXPECT_EQ(table_.ProgressOf(0).parameters, 1U);
  Add({0, 1}, {0, 1});
  EXPECT_FALSE(table_.ProgressOf(0).all_reduced);
  EXPECT_EQ(table_.ProgressOf(0).parameters, 3U);
  EXPECT_EQ(table_.ProgressOf(1).parameters, 0U);
}

}  // namespace
}  // namespace gradwire::server

// How a bucket is divided among shards, and comes back together.
#include "client/shard_buckets.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using ::testing::HasSubstr;

class ShardBucketsTest : public ::testing::Test {
 protected:
  ShardBuckets Of(const std::string& hook, std::uint32_t shards) {
    map_ = std::make_shared<const ShardMap>(
        *ShardMap::Make(*HookSpec::Parse(hook), manifest_, shards));
    return {map_, manifest_};
  }
  // Of consecutive numbers.
  GradBucket Bucket(const std::vector<std::size_t>& parameters) {
    std::vector<ParameterSpec> specs;
    std::size_t numel = 0;
    for (const std::size_t p : parameters) {
      specs.push_back(manifest_[p]);
      numel += specs.back().numel();
    }
    values_.resize(numel);
    std::iota(values_.begin(), values_.end(), 0.0F);
    return *GradBucket::Make(0, {DType::kFloat32, values_.data(), numel}, specs);
  }

  const std::vector<ParameterSpec> manifest_ = {{.name = "a", .shape = {3}},
                                                {.name = "b", .shape = {4}},
                                                {.name = "c", .shape = {5}},
                                                {.name = "d", .shape = {6}},
                                                {.name = "e", .shape = {0}}};
  std::shared_ptr<const ShardMap> map_;
  std::vector<float> values_;
};

TEST_F(ShardBucketsTest, WithSlicesEachShardHasTheWholeBucket) {
  const ShardBuckets buckets = Of("no", 3);
  const auto parts = buckets.Divide(Bucket({1, 3}));
  ASSERT_TRUE(parts.ok());
  ASSERT_EQ(parts->size(), 3U);
  for (std::uint32_t shard = 0; shard < 3; ++shard) {
    EXPECT_EQ((*parts)[shard].shard, shard);
    EXPECT_EQ((*parts)[shard].bucket.buffer().data, values_.data());
    EXPECT_EQ((*parts)[shard].bucket.buffer().numel, 10U);
    EXPECT_TRUE((*parts)[shard].bucket.is_flat());
  }
}

TEST_F(ShardBucketsTest, EachParameterGoesToItsOwnerAndStaysInItsPlace) {
  const ShardBuckets buckets = Of("power_sgd", 2);
  const GradBucket whole = Bucket({0, 1, 2, 3, 4});
  const auto parts = buckets.Divide(whole);
  ASSERT_TRUE(parts.ok());
  std::vector<int> seen(manifest_.size());
  for (const ShardBucket& part : *parts) {
    const std::vector<TensorView> gradients = part.bucket.gradients();
    std::size_t numel = 0;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const std::size_t p = static_cast<std::size_t>(part.bucket.parameters()[i].name[0] - 'a');
      EXPECT_TRUE(map_->Owns(part.shard, static_cast<std::uint32_t>(p)));
      ++seen[p];
      std::size_t first = 0;
      for (std::size_t q = 0; q < p; ++q) first += manifest_[q].numel();
      EXPECT_EQ(gradients[i].data, values_.data() + first) << manifest_[p].name;
      EXPECT_EQ(gradients[i].numel, manifest_[p].numel());
      numel += gradients[i].numel;
    }
    EXPECT_EQ(numel, part.bucket.buffer().numel);
  }
  EXPECT_EQ(seen, std::vector<int>(manifest_.size(), 1));
}

TEST_F(ShardBucketsTest, ShardsThatOwnNothingOfItHaveNoPart) {
  const ShardBuckets buckets = Of("power_sgd", 2);
  const auto parts = buckets.Divide(Bucket({2}));
  ASSERT_TRUE(parts.ok());
  ASSERT_EQ(parts->size(), 1U);
  EXPECT_TRUE(map_->Owns(parts->front().shard, 2));
  EXPECT_TRUE(parts->front().bucket.is_flat());
  EXPECT_EQ(parts->front().bucket.buffer().data, values_.data());
}

TEST_F(ShardBucketsTest, NamesAParameterThatIsNotTheModels) {
  const ShardBuckets buckets = Of("power_sgd", 2);
  values_.resize(2);
  const GradBucket bucket =
      *GradBucket::Make(0, {DType::kFloat32, values_.data(), 2}, {{.name = "x", .shape = {2}}});
  EXPECT_THAT(std::string(buckets.Divide(bucket).status().message()),
              HasSubstr("parameter \"x\" is not one of the model's"));
}

}  // namespace
}  // namespace gradwire::client

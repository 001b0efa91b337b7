// Which shard reduces what: everything is somebody's, and nothing is two shards'.
#include "hooks/shard_map.h"

#include <algorithm>
#include <numeric>

#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<ParameterSpec> Model(const std::vector<std::vector<std::int64_t>>& shapes) {
  std::vector<ParameterSpec> model;
  for (const auto& shape : shapes) {
    model.push_back({.name = "p" + std::to_string(model.size()), .shape = shape});
  }
  return model;
}

absl::StatusOr<ShardMap> Map(const std::string& hook, const std::vector<ParameterSpec>& model,
                             std::uint32_t shards) {
  return ShardMap::Make(*HookSpec::Parse(hook), model, shards);
}

// ---- Slices

TEST(Slice, EveryElementIsInOne) {
  for (const std::uint32_t parts : {1U, 2U, 3U, 4U, 7U, 16U, 63U, kMaxShards}) {
    for (const std::size_t numel : {0UL, 1UL, 2UL, 1023UL, 1024UL, 1025UL, 2047UL, 2048UL, 4096UL,
                                    5000UL, 65536UL, 65537UL, 100'003UL, 1'000'000UL}) {
      std::vector<int> covered(numel);
      for (std::uint32_t part = 0; part < parts; ++part) {
        const auto [begin, end] = Slice{.part = part, .parts = parts}.Of(numel);
        ASSERT_LE(begin, end);
        ASSERT_LE(end, numel);
        for (std::size_t i = begin; i < end; ++i) ++covered[i];
      }
      EXPECT_EQ(std::count(covered.begin(), covered.end(), 1), static_cast<std::ptrdiff_t>(numel))
          << numel << " in " << parts;
    }
  }
}

TEST(Slice, PartsAreOfTheSameSizeUpToTheGrain) {
  for (const std::uint32_t parts : {2U, 3U, 5U, 64U}) {
    const std::size_t numel = 1'000'000;
    for (std::uint32_t part = 0; part < parts; ++part) {
      const auto [begin, end] = Slice{.part = part, .parts = parts}.Of(numel);
      EXPECT_EQ(begin % Slice::kGrain, 0U);
      const auto size = static_cast<double>(end - begin);
      EXPECT_NEAR(size, static_cast<double>(numel) / parts, 2.0 * Slice::kGrain);
    }
  }
}

TEST(Slice, TheLargestSegmentFits) {
  const std::size_t numel = std::size_t{1} << 48;
  std::size_t next = 0;
  for (std::uint32_t part = 0; part < kMaxShards; ++part) {
    const auto [begin, end] = Slice{.part = part, .parts = kMaxShards}.Of(numel);
    EXPECT_EQ(begin, next);
    next = end;
  }
  EXPECT_EQ(next, numel);
}

// ---- The map

TEST(ShardMap, CastsHaveSlicesAndShardsDifferentOnes) {
  for (const char* hook : {"no", "fp16", "bf16"}) {
    const ShardMap map = *Map(hook, Model({{8}, {9}, {10}}), 3);
    EXPECT_TRUE(map.has_slices());
    for (std::uint32_t bucket = 0; bucket < 3; ++bucket) {
      std::vector<bool> taken(3);
      for (std::uint32_t shard = 0; shard < 3; ++shard) {
        const Slice slice = map.SliceOf(bucket, shard);
        EXPECT_EQ(slice.parts, 3U);
        EXPECT_FALSE(taken[slice.part]) << hook;
        taken[slice.part] = true;
        EXPECT_TRUE(map.Owns(shard, bucket));
      }
    }
    EXPECT_EQ(map.ParametersOf(2), 3U);
  }
}

// The last slice is the largest, and all of a small bucket: it must not always be one shard's.
TEST(ShardMap, NeighbouringBucketsEndAtOtherShards) {
  const ShardMap map = *Map("no", Model({{8}, {8}, {8}, {8}}), 2);
  const auto last = [&](std::uint32_t bucket) { return map.SliceOf(bucket, 0).part == 1 ? 0 : 1; };
  EXPECT_NE(last(0), last(1));
  EXPECT_NE(last(1), last(2));
}

TEST(ShardMap, OtherHooksHaveWholeParameters) {
  for (const char* hook : {"power_sgd", "power_sgd,rounds=1", "no,comm_wrapper=bf16"}) {
    const auto model = Model({{40, 50}, {7}, {60, 70}, {3}, {20, 20}, {0}});
    for (const std::uint32_t shards : {2U, 4U, 8U}) {
      const ShardMap map = *Map(hook, model, shards);
      EXPECT_FALSE(map.has_slices());
      std::size_t all = 0;
      for (std::uint32_t shard = 0; shard < shards; ++shard) all += map.ParametersOf(shard);
      EXPECT_EQ(all, model.size());
      for (std::uint32_t p = 0; p < model.size(); ++p) {
        int owners = 0;
        for (std::uint32_t shard = 0; shard < shards; ++shard) owners += map.Owns(shard, p) ? 1 : 0;
        EXPECT_EQ(owners, 1) << hook << " " << p;
        EXPECT_EQ(map.SliceOf(p, 1), Slice{}) << "buckets are whole";
      }
    }
  }
}

// Of a large matrix only factors travel: it weighs less than a vector of the same size.
TEST(ShardMap, WeighsWhatTravels) {
  const auto model = Model({{1000, 1000}, {500'000}, {1000, 1000}});
  const ShardMap map = *Map("power_sgd,matrix_approximation_rank=1", model, 2);
  EXPECT_EQ(map.Owns(0, 0), map.Owns(0, 2)) << "both matrices weigh less than the vector";
  EXPECT_NE(map.Owns(0, 0), map.Owns(0, 1));
}

TEST(ShardMap, OneDaemonTakesAnyHook) {
  const auto model = Model({{8}});
  EXPECT_TRUE(Map("batched_power_sgd", model, 1).ok());
  EXPECT_EQ(Map("batched_power_sgd", model, 1)->SliceOf(0, 0), Slice{});
}

TEST(ShardMap, RefusesWhatCannotBeDivided) {
  const auto model = Model({{8}});
  EXPECT_THAT(std::string(Map("batched_power_sgd", model, 2).status().message()),
              HasSubstr("shards: 2 with hook batched_power_sgd"));
  EXPECT_THAT(std::string(Map("no", model, 0).status().message()), HasSubstr("allowed: 1 to 64"));
  EXPECT_THAT(std::string(Map("no", model, 65).status().message()), HasSubstr("shards: 65"));
  EXPECT_TRUE(Map("no", model, 64).ok());
}

// ---- Balance

TEST(Balance, TheHeaviestGoFirstToTheLightest) {
  EXPECT_THAT(Balance(std::vector<std::size_t>{3, 9, 5, 4}, 2), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(Balance(std::vector<std::size_t>{5, 5, 5, 5}, 2), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(Balance(std::vector<std::size_t>{0, 0}, 3), ElementsAre(0, 0));
  EXPECT_THAT(Balance(std::vector<std::size_t>{1, 2}, 4), ElementsAre(1, 0));
  EXPECT_TRUE(Balance({}, 2).empty());
}

// The known bound of this rule: no bin has more than the mean and one weight.
TEST(Balance, NoBinIsFarAboveTheMean) {
  std::uint64_t state = 1;
  for (std::uint32_t bins = 1; bins < 12; ++bins) {
    std::vector<std::size_t> weights(50);
    for (std::size_t& weight : weights) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      weight = state >> 44;
    }
    std::vector<std::size_t> loads(bins);
    const std::vector<std::uint32_t> bin_of = Balance(weights, bins);
    for (std::size_t i = 0; i < weights.size(); ++i) loads.at(bin_of[i]) += weights[i];
    const std::size_t all = std::accumulate(weights.begin(), weights.end(), std::size_t{0});
    const std::size_t heaviest = *std::max_element(weights.begin(), weights.end());
    EXPECT_LE(*std::max_element(loads.begin(), loads.end()), all / bins + heaviest);
  }
}

}  // namespace
}  // namespace gradwire

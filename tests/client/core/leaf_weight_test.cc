#include "client/core/leaf_weight.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

TEST(LeafWeight, IsOneWhereAllGroupsAreEqual) {
  for (const int ranks : {1, 3, 7}) {
    for (const std::uint32_t groups : {1U, 3U, 49U}) {
      EXPECT_EQ(LeafWeight(ranks, groups, ranks * static_cast<int>(groups)), 1.0);
    }
  }
}

// The mean of the groups' weighed means is the mean of all.
TEST(LeafWeight, MakesAMeanOfGroupsOneOfRanks) {
  const std::vector<int> groups = {1, 4, 2};
  double mean = 0;
  for (const int ranks : groups) mean += LeafWeight(ranks, 3, 7) * ranks * 10 / 3;
  EXPECT_NEAR(mean, (1 * 1 + 4 * 4 + 2 * 2) * 10 / 7.0, 1e-12);
}

TEST(Weigh, RoundsOnce) {
  for (const std::size_t numel : std::vector<std::size_t>{0, 1, 1023, 1024, 1025, 5000}) {
    std::vector<float> values(numel);
    std::vector<float> expected(numel);
    for (std::size_t i = 0; i < numel; ++i) {
      values[i] = static_cast<float>(std::sin(static_cast<double>(i) + 1) * 1e-3);
      expected[i] = static_cast<float>(static_cast<double>(values[i]) * (2.0 / 3));
    }
    Weigh({.dtype = DType::kFloat32, .data = values.data(), .numel = numel}, 2.0 / 3);
    EXPECT_EQ(values, expected) << numel;
  }
}

// 3 has 2 bits: 3/4 of it is exact in each type, and 1 + 2^-10 is binary16's next after 1.
TEST(Weigh, KnowsAllTypes) {
  std::vector<double> doubles = {3, -1e300};
  Weigh({.dtype = DType::kFloat64, .data = doubles.data(), .numel = 2}, 0.75);
  EXPECT_EQ(doubles, (std::vector<double>{2.25, -7.5e299}));
  std::vector<std::uint16_t> halves = {0x4200, 0x3C01};  // 3, 1 + 2^-10
  Weigh({.dtype = DType::kFloat16, .data = halves.data(), .numel = 2}, 0.75);
  EXPECT_EQ(halves[0], 0x4080);  // 2.25
  EXPECT_EQ(halves[1], 0x3A02);  // 0.75 + 3 * 2^-12 lies between two, and ties to even
  std::vector<std::uint16_t> brains = {0x4040};  // 3
  Weigh({.dtype = DType::kBFloat16, .data = brains.data(), .numel = 1}, 0.75);
  EXPECT_EQ(brains[0], 0x4010);  // 2.25
}

}  // namespace
}  // namespace gradwire::client

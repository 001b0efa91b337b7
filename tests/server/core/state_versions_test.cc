// Against a plain table of one version for each member and parameter.
#include "server/core/state_versions.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kParameters = 12;
constexpr int kMembers = 70;  // more than one word of bits

using Lists = std::vector<std::vector<std::uint32_t>>;

Lists RandomBuckets(std::mt19937& random) {
  std::vector<std::uint32_t> order(kParameters);
  for (std::uint32_t p = 0; p < kParameters; ++p) order[p] = p;
  std::shuffle(order.begin(), order.end(), random);
  Lists lists(1);
  for (const std::uint32_t p : order) {
    if (!lists.back().empty() && random() % 3 == 0) lists.emplace_back();
    lists.back().push_back(p);
  }
  return lists;
}

// Buckets change in most steps; a version changes at times. Where every member sends every bucket,
// both say the same; where some do not, one that moved to another bucket may be taken to lack what
// it has, which costs bytes, and never the other way round.
class StateVersionsTest : public ::testing::TestWithParam<bool> {};

TEST_P(StateVersionsTest, SayWhatATableOfAllWouldSay) {
  const bool all_send = GetParam();
  std::mt19937 random(7);
  StateVersions versions(kParameters, kMembers);
  std::vector<std::vector<std::uint64_t>> table(kMembers, std::vector<std::uint64_t>(kParameters));
  std::uint64_t version = 1;
  Lists lists = RandomBuckets(random);
  int had = 0;
  for (int step = 0; step < 300; ++step) {
    const bool moves = random() % 2 == 0;
    if (moves) lists = RandomBuckets(random);
    if (random() % 20 == 0) ++version;
    if (random() % 50 == 0) {
      versions.Clear();
      for (auto& row : table) std::fill(row.begin(), row.end(), 0);
    }
    for (const auto& list : lists) {
      versions.Place(list);
      for (int rank = 0; rank < kMembers; ++rank) {
        auto& row = table[static_cast<std::size_t>(rank)];
        const bool has = std::all_of(list.begin(), list.end(),
                                     [&](std::uint32_t p) { return row[p] == version; });
        const bool said = versions.Has(rank, list.front(), version);
        ASSERT_TRUE(has || !said) << "step " << step;
        ASSERT_TRUE(said == has || !all_send) << "step " << step;
        had += said ? 1 : 0;
        if (!all_send && random() % 4 == 0) continue;
        versions.Set(rank, list.front(), version);
        for (const std::uint32_t p : list) row[p] = version;
      }
    }
  }
  EXPECT_GT(had, 1000);
}

INSTANTIATE_TEST_SUITE_P(AllMembersSend, StateVersionsTest, ::testing::Bool());

}  // namespace
}  // namespace gradwire::server

#include "proto/wire/share_owners.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::wire {
namespace {

using ::testing::ElementsAre;

std::vector<std::size_t> Owners(const std::vector<int>& ranks, std::uint32_t shares) {
  return ShareOwners(ranks, shares);
}

TEST(ShareOwners, EachMemberOfAWholeNodeHasOne) {
  EXPECT_THAT(Owners({0, 1, 2, 3}, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Owners({4, 5, 6, 7}, 4), ElementsAre(0, 1, 2, 3));
}

TEST(ShareOwners, OneOfALostMemberGoesToAnother) {
  EXPECT_THAT(Owners({0, 2, 3}, 4), ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(Owners({2, 3}, 4), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(Owners({3}, 4), ElementsAre(0, 0, 0, 0));
}

TEST(ShareOwners, AreAsManyForEachWhateverTheRanksAre) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const std::size_t size = 1 + random() % 8;
    const auto shares = static_cast<std::uint32_t>(1 + random() % 8);
    std::vector<int> all(20);
    for (int r = 0; r < 20; ++r) all[static_cast<std::size_t>(r)] = r;
    std::ranges::shuffle(all, random);
    std::vector<int> ranks(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size));
    std::ranges::sort(ranks);
    const std::vector<std::size_t> owners = Owners(ranks, shares);
    ASSERT_EQ(owners.size(), shares);
    std::vector<int> has(size);
    for (const std::size_t owner : owners) {
      ASSERT_LT(owner, size);
      ++has[owner];
    }
    const auto [least, most] = std::ranges::minmax(has);
    EXPECT_LE(most - least, 1);
  }
}

// Whoever is lost, the others of a node keep what they had.
TEST(ShareOwners, StayWithThoseWhoStay) {
  const std::vector<int> whole = {8, 9, 10, 11};
  for (std::size_t lost = 0; lost < whole.size(); ++lost) {
    std::vector<int> left = whole;
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(lost));
    const std::vector<std::size_t> owners = Owners(left, 4);
    for (std::size_t share = 0; share < 4; ++share) {
      if (share == lost) continue;
      EXPECT_EQ(left[owners[share]], whole[share]);
    }
  }
}

}  // namespace
}  // namespace gradwire::wire

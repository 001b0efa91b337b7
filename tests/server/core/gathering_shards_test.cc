// What a shard that does not lead makes of its members' reports: what shard 0 has decided.
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/gathering.h"
#include "tests/server/core/gathering_reports.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pointee;

using Reports = std::vector<std::optional<Report>>;

absl::StatusOr<Gathering::Outcome> Follow(const Reports& reports) {
  Gathering gathering(kKey, 5, static_cast<int>(reports.size()), /*shrinks=*/false,
                      /*follows=*/true);
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    gathering.Take(static_cast<int>(rank), reports[rank]);
  }
  return gathering.Decide();
}

TEST(GatheringOfAShard, TheStepGoesOnWhateverMembersSayOfIt) {
  for (const Reports& reports : {Reports{At(4), At(4)},
                                 {Ready(4), Ready(4)},
                                 {Contributed(4, true), Contributed(4, true)}}) {
    const auto outcome = Follow(reports);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->step, 4);
    EXPECT_THAT(outcome->ended, IsEmpty());
    EXPECT_FALSE(outcome->change.has_value());
  }
}

TEST(GatheringOfAShard, MembersThatWereWelcomedInDifferentStepsContradictEachOther) {
  EXPECT_THAT(std::string(Follow({At(4), At(5)}).status().message()),
              HasSubstr("rank 0 was welcomed by shard 0 in step 4, rank 1 in step 5"));
}

TEST(GatheringOfAShard, ABarrierBeginsAnewForThoseWhoAreInIt) {
  Report through = At(4);
  through.collectives = 3;
  Report in = At(4);
  in.collectives = 2;
  const auto outcome = Follow({through, in});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->collectives, 2U);
  EXPECT_THAT(outcome->through, ElementsAre(true, false));
}

TEST(GatheringOfAShard, NewcomersAreNamedAndNoStepIsDropped) {
  Report still_new = At(4);
  still_new.newcomer = true;
  const auto outcome = Follow({still_new, At(4), std::nullopt});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->step, 4);
  EXPECT_THAT(outcome->ended, IsEmpty());
  ASSERT_TRUE(outcome->change.has_value());
  EXPECT_THAT(outcome->change->newcomers, ElementsAre(0, 2));
  EXPECT_EQ(outcome->change->root, 1);
  EXPECT_THAT(outcome->fresh, ElementsAre(2));
  EXPECT_EQ(outcome->donor, 1);
}

TEST(GatheringOfAShard, TheRosterIsThatOfShard0) {
  Gathering gathering(kKey, 5, 3, /*shrinks=*/true, /*follows=*/true);
  EXPECT_EQ(gathering.Followed(), nullptr);
  for (const int rank : {0, 2}) {
    Report report = At(4);
    report.roster = {.number = 6, .ranks = {0, 2}};
    gathering.Take(rank, report);
  }
  EXPECT_THAT(gathering.Followed(), Pointee(ElementsAre(0, 2)));
  gathering.SetGone(1);
  const auto outcome = gathering.Decide();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->roster, (wire::Roster{.number = 6, .ranks = {0, 2}}));
  EXPECT_FALSE(outcome->change.has_value());
}

TEST(Gathering, EachLifeOfTheSessionHasAHigherNumber) {
  Gathering gathering(kKey, 5, 2);
  Report one = At(4);
  one.life = 3;
  gathering.Take(0, one);
  one.life = 2;
  gathering.Take(1, one);
  EXPECT_EQ(gathering.Decide()->life, 4U);
}

}  // namespace
}  // namespace gradwire::server

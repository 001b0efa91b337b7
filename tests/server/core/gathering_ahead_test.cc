// What reports say of steps that some members have seen end, and others have not.
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/step_chain.h"
#include "tests/server/core/gathering_reports.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Reports = std::vector<std::optional<Report>>;  // none: that rank has not come

Gathering Gather(const Reports& reports, bool shrinks = false) {
  Gathering gathering(kKey, 5, static_cast<int>(reports.size()), shrinks);
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank]) gathering.Take(static_cast<int>(rank), reports[rank]);
  }
  return gathering;
}

TEST(Known, IsHowAStepEndedThatOneHasSeen) {
  const auto known = Gather({At(5), Ready(4), std::nullopt}).Known();
  ASSERT_THAT(known, SizeIs(1));
  EXPECT_EQ(known[0].step, 4);
  EXPECT_EQ(known[0].verdict, Verdict::kApply);
  EXPECT_EQ(known[0].digest, 9U);
  EXPECT_FALSE(known[0].dropped);
}

TEST(Known, HasEachStepThatWasDroppedAfterIt) {
  Report ahead = At(7);
  ahead.last = Verdict::kSkip;
  ahead.skipped = 2;
  const auto known = Gather({ahead, Ready(4), std::nullopt}).Known();
  ASSERT_THAT(known, SizeIs(3));
  EXPECT_EQ(known[0].verdict, Verdict::kApply);
  EXPECT_TRUE(known[1].dropped);
  EXPECT_TRUE(known[2].dropped);
}

TEST(Known, IsNothingWhereNobodyHasSeenMore) {
  EXPECT_THAT(Gather({std::nullopt, std::nullopt}).Known(), IsEmpty());
  EXPECT_THAT(Gather({Ready(4), std::nullopt}).Known(), IsEmpty());
  EXPECT_THAT(Gather({Ready(4), Ready(4), std::nullopt}).Known(), IsEmpty())
      << "the third may lack the results";
}

TEST(Known, IsNothingThatNewcomersSay) {
  Report ahead = At(5);
  ahead.newcomer = true;
  EXPECT_THAT(Gather({ahead, Ready(4), std::nullopt}).Known(), IsEmpty());
}

TEST(Known, IsNothingWhereReportsContradictEachOther) {
  EXPECT_THAT(Gather({At(5), Ready(4, Verdict::kSkip)}).Known(), IsEmpty());
  EXPECT_THAT(Gather({At(5), Contributed(4, true)}).Known(), IsEmpty());
  EXPECT_THAT(Gather({At(500), Ready(4)}).Known(), IsEmpty());
  Report ahead = At(5);
  wire::StepChain chain(4, 77);
  chain.Advance({.step = 4, .digest = 8});
  ahead.chain = chain.Before(5);
  Report ready = Ready(4);
  ready.chain = 77;
  EXPECT_THAT(Gather({ahead, ready}).Known(), IsEmpty()) << "other results";
  ready.ready->digest = 8;
  EXPECT_THAT(Gather({ahead, ready}).Known(), SizeIs(1));
}

// The others may have gone on with another mean.
TEST(Known, IsNothingWhereTheSessionShrinks) {
  EXPECT_THAT(Gather({At(5), Ready(4), std::nullopt}, true).Known(), IsEmpty());
  Report ahead = At(5);
  ahead.roster = wire::Roster{.number = 3, .ranks = {0, 1}};
  Report ready = Ready(4);
  ready.roster = ahead.roster;
  EXPECT_THAT(Gather({ahead, ready, std::nullopt}).Known(), IsEmpty()) << "the last daemon's did";
}

// Not all may have heard what this daemon was about to tell them.
TEST(Known, BeginsWithWhatMembersWereToBeTold) {
  Gathering gathering = Gather({Ready(4), Ready(4)});
  const auto outcome = gathering.Decide();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  gathering.Tell(*outcome);
  gathering.Take(1, Ready(4));
  const auto known = gathering.Known();
  ASSERT_THAT(known, SizeIs(1));
  EXPECT_EQ(known[0].step, 4);
  EXPECT_EQ(known[0].verdict, Verdict::kApply);
}

// Anybody could say so of a session that a daemon does not know, and have it count to there.
TEST(Gathering, ANewcomerMayNotBeAnyNumberOfStepsAhead) {
  Report far = At(std::int64_t{1} << 61);
  far.newcomer = true;
  const auto outcome = Gather({At(4), far}).Decide();
  EXPECT_EQ(outcome.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(outcome.status().message()),
              HasSubstr("rank 1, which is new, is in step 2305843009213693952, the others in step "
                        "4"));
}

}  // namespace
}  // namespace gradwire::server

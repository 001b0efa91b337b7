// Ranks, leases and silence, by themselves. What a session makes of them is in session_test.cc.
#include "server/core/membership.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MembershipTest : public ::testing::Test {
 protected:
  static constexpr Membership::Limits kLimits = {.token_timeout = absl::Seconds(5),
                                                 .resume_grace = absl::Seconds(1),
                                                 .silence_timeout = absl::Seconds(15)};

  absl::Status Join(int rank, std::uint64_t start_id) {
    return members_.Join(rank, start_id, "s", now_).status();
  }
  void Connect(int rank) {
    ASSERT_TRUE(Join(rank, 100 + static_cast<std::uint64_t>(rank)).ok());
    members_.Attach(rank, 10 + static_cast<std::uint64_t>(rank), now_);
  }
  void Pass(absl::Duration time, absl::Duration tick = absl::Milliseconds(100)) {
    for (const absl::Time end = now_ + time; now_ < end;) members_.Tick(now_ += tick);
  }

  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  Membership members_{3, kLimits, now_};
};

TEST_F(MembershipTest, ARankHasOneHolder) {
  ASSERT_TRUE(Join(1, 7).ok());
  EXPECT_FALSE(members_.Join(1, 7, "s", now_)->fresh);
  EXPECT_EQ(Join(1, 8).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(members_.Join(-1, 8, "s", now_)->rank, 0);
  EXPECT_EQ(members_.Join(-1, 9, "s", now_)->rank, 2);
  EXPECT_THAT(std::string(Join(-1, 10).message()), HasSubstr("all 3 ranks of session \"s\""));
  EXPECT_TRUE(members_.IsHeldBy(1, 7));
  EXPECT_FALSE(members_.IsHeldBy(1, 8));
  EXPECT_FALSE(members_.IsHeldBy(3, 7));
}

TEST_F(MembershipTest, OnlyTheLastStreamIsHeard) {
  Connect(0);
  EXPECT_EQ(members_.Attach(0, 77, now_), 10U);
  now_ += absl::Seconds(1);
  EXPECT_FALSE(members_.Hear(0, 10, now_));
  EXPECT_FALSE(members_.Detach(0, 10, now_));
  EXPECT_EQ(members_.last_heard(0), now_ - absl::Seconds(1));
  EXPECT_TRUE(members_.Hear(0, 77, now_));
  EXPECT_EQ(members_.last_heard(0), now_);
  EXPECT_TRUE(members_.Detach(0, 77, now_));
  EXPECT_EQ(members_.state(0), MemberState::kLost);
}

TEST_F(MembershipTest, BeforeTheStartAHolderThatIsGoneFreesItsRank) {
  ASSERT_TRUE(Join(0, 1).ok());  // its token is not used
  Connect(1);                    // its stream breaks
  Connect(2);                    // it falls silent
  members_.Detach(1, 11, now_);
  Pass(absl::Seconds(1.2));
  EXPECT_THAT(members_.FreeGone(now_), SizeIs(1));
  EXPECT_EQ(members_.state(1), MemberState::kAbsent);
  Pass(absl::Seconds(4));
  EXPECT_THAT(members_.FreeGone(now_), SizeIs(1));
  EXPECT_EQ(members_.state(0), MemberState::kAbsent);
  Pass(absl::Seconds(10));
  const auto freed = members_.FreeGone(now_);
  ASSERT_THAT(freed, SizeIs(1));
  EXPECT_EQ(freed[0].connection, 12U);
}

TEST_F(MembershipTest, AResumeWithinTheGraceIsNoLoss) {
  Connect(0);
  members_.Detach(0, 10, now_);
  Pass(absl::Seconds(0.9));
  EXPECT_FALSE(members_.FindLoss(now_).has_value());
  members_.Attach(0, 99, now_);
  Pass(absl::Seconds(5));
  EXPECT_FALSE(members_.FindLoss(now_).has_value());
}

// The bound that the header states, for a limit of 1 s and one of 15 s.
TEST_F(MembershipTest, LateTicksCountForAQuarterOfASecond) {
  Connect(0);
  Connect(1);
  members_.Detach(0, 10, now_);
  int ticks = 0;
  while (!members_.FindLoss(now_)) {
    members_.Tick(now_ += absl::Minutes(1));
    ASSERT_LE(++ticks, 5);
  }
  EXPECT_EQ(members_.FindLoss(now_)->rank, 0);
  members_.Attach(0, 99, now_);
  for (ticks = 0; !members_.FindLoss(now_);) {
    members_.Tick(now_ += absl::Minutes(1));
    members_.Hear(0, 99, now_);
    ASSERT_LE(++ticks, 61);
  }
  EXPECT_EQ(members_.FindLoss(now_)->rank, 1);
}

// What was said after the daemon woke is not given the pause as well.
TEST_F(MembershipTest, APauseMovesNobodyIntoTheFuture) {
  Connect(0);
  now_ += absl::Minutes(1);
  members_.Hear(0, 10, now_);
  members_.Tick(now_);
  EXPECT_EQ(members_.last_heard(0), now_);
}

TEST_F(MembershipTest, TheEndOfASessionEndsWhoIsThere) {
  Connect(0);
  Connect(1);
  ASSERT_TRUE(Join(2, 5).ok());
  members_.Leave(1, now_);
  members_.End();
  members_.Lose(0);
  EXPECT_EQ(members_.state(0), MemberState::kLost);
  EXPECT_EQ(members_.state(1), MemberState::kLeft);
  EXPECT_EQ(members_.state(2), MemberState::kEnded);
  EXPECT_THAT(members_.Reachable(), IsEmpty());
  EXPECT_THAT(members_.Staying(), ElementsAre(0, 2));
  EXPECT_EQ(members_.FirstLeft(), 1);
}

TEST_F(MembershipTest, NamesSayWhoAndSinceWhen) {
  Connect(1);
  Pass(absl::Seconds(2));
  EXPECT_EQ(members_.Names({1}, now_), "rank 1 (connected, last heard 2s ago)");
  EXPECT_EQ(members_.Names({0, 2}, now_), "ranks 0, 2");
  EXPECT_EQ(members_.MissingNames(), "ranks 0, 2 of 3");
}

}  // namespace
}  // namespace gradwire::server

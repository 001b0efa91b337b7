#include "server/core/failure_policy.h"

#include <string>

#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

using Kind = FailureEvent::Kind;

class FailurePolicyTest : public ::testing::Test {
 protected:
  void Expect(const FailureEvent& event, absl::StatusCode code, const std::string& reason,
              int blamed) {
    const Decision decision = Decide(event, members_);
    EXPECT_EQ(decision.action, Decision::Action::kFail);
    EXPECT_EQ(decision.reason, absl::Status(code, reason));
    EXPECT_EQ(decision.blamed_rank, blamed);
  }

  const absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  Membership members_{3, {}, now_};
};

TEST_F(FailurePolicyTest, BlamesTheOneThatDidIt) {
  Expect(ViolationOf(1, absl::DataLossError("sent garbage")), absl::StatusCode::kDataLoss,
         "rank 1: sent garbage [GW304]", 1);
  Expect({.kind = Kind::kLost, .rank = 2, .what = absl::AbortedError("in step 4: it is silent")},
         absl::StatusCode::kAborted, "rank 2 was lost in step 4: it is silent [GW301]", 2);
  Expect({.kind = Kind::kGone, .rank = 0, .what = absl::AbortedError("rank 0 has left")},
         absl::StatusCode::kAborted, "rank 0 has left [GW305]", 0);
  Expect({.kind = Kind::kWrongJoin, .rank = 1, .what = absl::InvalidArgumentError("hook: differs")},
         absl::StatusCode::kInvalidArgument,
         "rank 1 asked to join with something else: hook: differs [GW200]", 1);
}

// What was found keeps its code.
TEST_F(FailurePolicyTest, TheCodeOfTheCauseIsTheSessions) {
  Expect(ViolationOf(1, absl::InvalidArgumentError("announced b [GW318]")),
         absl::StatusCode::kInvalidArgument, "rank 1: announced b [GW318]", 1);
  Expect({.kind = Kind::kLost, .rank = 2, .what = absl::AbortedError("in step 4: silent [GW302]")},
         absl::StatusCode::kAborted, "rank 2 was lost in step 4: silent [GW302]", 2);
}

TEST_F(FailurePolicyTest, ATimeoutNamesWhoIsMissingAndBlamesNobody) {
  ASSERT_TRUE(members_.Join(1, 7, "s", now_).ok());
  members_.Attach(1, 9, now_);
  Expect({.kind = Kind::kJoinTimeout, .waited = absl::Seconds(5)},
         absl::StatusCode::kDeadlineExceeded, "waited 5s for ranks 0, 2 of 3 to join [GW205]", -1);
  Expect({.kind = Kind::kJoinTimeout,
          .what = absl::DeadlineExceededError("it is too late"),
          .waited = absl::Seconds(5)},
         absl::StatusCode::kDeadlineExceeded,
         "waited 5s for ranks 0, 2 of 3 to join; it is too late [GW205]", -1);
  Expect({.kind = Kind::kStepTimeout,
          .what = absl::DeadlineExceededError("step 1 waits for rank 2"),
          .waited = absl::Minutes(1)},
         absl::StatusCode::kDeadlineExceeded, "no result after 1m: step 1 waits for rank 2 [GW303]",
         -1);
}

TEST_F(FailurePolicyTest, TheDaemonsOwnReasonStaysAsItIs) {
  Expect({.kind = Kind::kOwner, .rank = -1, .what = absl::UnavailableError("draining")},
         absl::StatusCode::kUnavailable, "draining [GW300]", -1);
}

}  // namespace
}  // namespace gradwire::server

#include "client/core/reconnect.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

constexpr absl::Duration kBetween = absl::Milliseconds(50);
constexpr absl::Duration kGrace = absl::Seconds(1);
const absl::Time kStart = absl::UnixEpoch();

using Timers = Reconnect<absl::Time, absl::Duration>;

TEST(Reconnect, TriesAtOnceAndThenAfterAWait) {
  Timers timers(kBetween, kGrace);
  EXPECT_FALSE(timers.lost());
  timers.OnLost(kStart);
  EXPECT_TRUE(timers.lost());
  EXPECT_EQ(timers.next_try(), kStart);
  timers.OnLost(kStart + absl::Milliseconds(3));
  EXPECT_EQ(timers.next_try(), kStart + absl::Milliseconds(53));
}

TEST(Reconnect, FailedTriesDoNotExtendTheGrace) {
  Timers timers(kBetween, kGrace);
  timers.OnLost(kStart);
  for (int tries = 1; tries < 20; ++tries) timers.OnLost(timers.next_try());
  EXPECT_EQ(timers.gives_up_at(), kStart + kGrace);
}

TEST(Reconnect, AFrameEndsTheGrace) {
  Timers timers(kBetween, kGrace);
  timers.OnLost(kStart);
  timers.OnHeard();
  EXPECT_FALSE(timers.lost());
  const absl::Time later = kStart + absl::Hours(1);
  timers.OnLost(later);
  EXPECT_EQ(timers.next_try(), later) << "the first try after a good stream is immediate";
  EXPECT_EQ(timers.gives_up_at(), later + kGrace);
}

}  // namespace
}  // namespace gradwire::client

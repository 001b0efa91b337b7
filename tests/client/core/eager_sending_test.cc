#include "client/core/eager_sending.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EagerSending, StaysUnderItsLimitUntilTheNextAnnouncementAcknowledges) {
  EagerSending eager(100);
  EXPECT_FALSE(eager.MaySend(101));
  ASSERT_TRUE(eager.MaySend(60));
  eager.Sent(1, 60);
  EXPECT_FALSE(eager.MaySend(41));
  EXPECT_TRUE(eager.MaySend(40));
  eager.Finish(1);
  EXPECT_TRUE(eager.MaySend(100)) << "the announcement that would carry it acknowledges bucket 1";
  EXPECT_THAT(eager.TakeAcknowledged(), ElementsAre(1U));
  EXPECT_THAT(eager.TakeAcknowledged(), IsEmpty());
  eager.Sent(2, 100);
  EXPECT_FALSE(eager.MaySend(1));
}

TEST(EagerSending, WhatIsGrantedOrAcknowledgedByItselfCountsNoMore) {
  EagerSending eager(100);
  eager.Sent(1, 60);
  eager.Forget(1);
  EXPECT_FALSE(eager.IsOpen(1));
  EXPECT_TRUE(eager.MaySend(100));
  eager.Forget(1);
  eager.Finish(1);
  EXPECT_THAT(eager.TakeAcknowledged(), IsEmpty());
  EXPECT_TRUE(eager.MaySend(100));
  EXPECT_FALSE(eager.MaySend(101));
}

TEST(EagerSending, StopsWithItsStreamUntilTheNextStep) {
  EagerSending eager(100);
  eager.Sent(1, 10);
  eager.Sent(2, 10);
  eager.Finish(1);
  eager.Stop();
  EXPECT_FALSE(eager.MaySend(1));
  EXPECT_FALSE(eager.IsOpen(2));
  EXPECT_THAT(eager.TakeAcknowledged(), ElementsAre(1U)) << "its result is here";
  eager.EndStep();
  EXPECT_TRUE(eager.MaySend(100));
}

TEST(EagerSending, TheNextStepOwesNothing) {
  EagerSending eager(100);
  eager.Sent(1, 100);
  eager.Finish(1);
  eager.EndStep();
  EXPECT_THAT(eager.TakeAcknowledged(), IsEmpty());
  EXPECT_TRUE(eager.MaySend(100));
  EXPECT_FALSE(eager.MaySend(101));
}

}  // namespace
}  // namespace gradwire::client

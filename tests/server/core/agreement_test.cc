// What the shards of a session agree on, without a session.
#include "server/core/agreement.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kApply = Verdict::kApply;
constexpr auto kSkip = Verdict::kSkip;

wire::Ready Ready(Verdict verdict, std::uint64_t digest = 5) {
  return {.verdict = verdict, .digest = digest};
}

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST(Agreement, ADaemonAloneDecidesWhenItIsPrepared) {
  for (const Verdict verdict : {kApply, kSkip}) {
    Agreement agreement(0, 1, 2);
    EXPECT_TRUE(agreement.alone());
    EXPECT_EQ(agreement.decided(), std::nullopt);
    agreement.Prepare(verdict);
    EXPECT_EQ(agreement.decided(), verdict);
    EXPECT_THAT(Text(agreement.OnReady(0, Ready(verdict))), HasSubstr("does not lead"));
  }
}

TEST(Agreement, TheLeadDecidesWhenAllMembersAreReady) {
  Agreement lead(0, 3, 3);
  EXPECT_TRUE(lead.leads());
  lead.Prepare(kApply);
  EXPECT_EQ(lead.decided(), std::nullopt);
  EXPECT_THAT(lead.NotReady(), ElementsAre(0, 1, 2));
  for (const int rank : {2, 0, 2, 2}) EXPECT_TRUE(lead.OnReady(rank, Ready(kApply)).ok());
  EXPECT_THAT(lead.NotReady(), ElementsAre(1));
  EXPECT_EQ(lead.decided(), std::nullopt) << "a repeated READY counts once";
  EXPECT_TRUE(lead.OnReady(1, Ready(kApply)).ok());
  EXPECT_EQ(lead.decided(), kApply);
  EXPECT_EQ(lead.digest(), 5U);
}

TEST(Agreement, AnotherShardsSkipCountsHere) {
  Agreement lead(0, 2, 2);
  lead.Prepare(kApply);
  EXPECT_TRUE(lead.OnReady(0, Ready(kSkip)).ok());
  EXPECT_TRUE(lead.OnReady(1, Ready(kSkip)).ok());
  EXPECT_EQ(lead.decided(), kSkip);
}

TEST(Agreement, ReadyMustFitWhatIsKnown) {
  Agreement lead(0, 2, 2);
  EXPECT_THAT(Text(lead.OnReady(0, Ready(kApply))), HasSubstr("before it has its results"));
  lead.Prepare(kSkip);
  EXPECT_THAT(Text(lead.OnReady(0, Ready(kApply))), HasSubstr("not finite; allowed: SKIP"));
  EXPECT_TRUE(lead.OnReady(0, Ready(kSkip, 5)).ok());
  EXPECT_EQ(Text(lead.OnReady(1, Ready(kSkip, 6))),
            "is READY with SKIP and digest 6; rank 0 with SKIP and 5");
  EXPECT_EQ(lead.decided(), std::nullopt);
  EXPECT_THAT(Text(lead.OnConcluded({.verdict = kSkip})), HasSubstr("told the session's lead"));
  EXPECT_THAT(Text(lead.CheckRepeated({.verdict = kSkip})), HasSubstr("told the session's lead"));

  Agreement differs(0, 2, 2);
  differs.Prepare(kApply);
  EXPECT_TRUE(differs.OnReady(1, Ready(kApply)).ok());
  EXPECT_THAT(Text(differs.OnReady(0, Ready(kSkip))), HasSubstr("SKIP and digest 5; rank 1"));
}

TEST(Agreement, OtherShardsFollowTheFirstMember) {
  Agreement shard(1, 2, 3);
  EXPECT_FALSE(shard.leads());
  EXPECT_THAT(Text(shard.OnConcluded({.verdict = kApply})), HasSubstr("before it has its results"));
  shard.Prepare(kApply);
  EXPECT_EQ(shard.decided(), std::nullopt);
  EXPECT_THAT(Text(shard.OnReady(0, Ready(kApply))), HasSubstr("does not lead"));
  EXPECT_TRUE(shard.OnConcluded({.verdict = kSkip}).ok());
  EXPECT_EQ(shard.decided(), kSkip);
  shard.NextStep();
  EXPECT_TRUE(shard.CheckRepeated({.verdict = kSkip}).ok());
  EXPECT_THAT(Text(shard.CheckRepeated({.verdict = kApply})),
              HasSubstr("another member says SKIP"));
}

TEST(Agreement, ShardsDoNotApplyWhatIsNotFinite) {
  Agreement shard(1, 2, 1);
  shard.Prepare(kSkip);
  EXPECT_THAT(Text(shard.OnConcluded({.verdict = kApply})), HasSubstr("allowed: SKIP"));
  EXPECT_EQ(shard.decided(), std::nullopt);
}

TEST(Agreement, TheNextStepBeginsFromNothing) {
  Agreement lead(0, 2, 1);
  lead.Prepare(kSkip);
  lead.Prepare(kApply);
  EXPECT_EQ(lead.prepared(), kSkip) << "the first call counts";
  EXPECT_TRUE(lead.OnReady(0, Ready(kSkip)).ok());
  EXPECT_THAT(lead.NotReady(), IsEmpty());
  lead.NextStep();
  EXPECT_EQ(lead.prepared(), std::nullopt);
  EXPECT_EQ(lead.decided(), std::nullopt);
  EXPECT_THAT(lead.NotReady(), ElementsAre(0));
  lead.Prepare(kApply);
  EXPECT_TRUE(lead.OnReady(0, Ready(kApply, 9)).ok());
  EXPECT_EQ(lead.decided(), kApply);
  EXPECT_EQ(lead.digest(), 9U);
}

}  // namespace
}  // namespace gradwire::server

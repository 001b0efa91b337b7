#include "client/core/shard_losses.h"

#include "client/core/shard_reports.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ShardLoss Loss(std::optional<std::uint64_t> asked = std::nullopt) {
  return {.report = wire::MemberReport{.session_key = {}, .step = 4, .keeps_gradients = true},
          .asked = asked};
}

TEST(ShardLosses, TheFirstOneIsEverybodys) {
  ShardLosses losses(3);
  const auto first = losses.OnLost(1, Loss());
  EXPECT_THAT(first.ask, ElementsAre(0U, 2U));
  EXPECT_EQ(first.number, 0U);
  EXPECT_FALSE(first.report.has_value());
  const auto again = losses.OnLost(1, Loss());
  EXPECT_THAT(again.ask, IsEmpty());
  const auto second = losses.OnLost(2, Loss());
  EXPECT_THAT(second.ask, IsEmpty()) << "they have been asked";
  const auto last = losses.OnLost(0, Loss(0));
  EXPECT_THAT(last.ask, IsEmpty());
  ASSERT_TRUE(last.report.has_value());
  EXPECT_EQ(last.report->step, 4);
}

// The answer to a request has been overtaken by the end of that shard's stream.
TEST(ShardLosses, ALateAnswerIsOfALossThatIsOver) {
  ShardLosses losses(2);
  losses.OnLost(0, Loss());
  ASSERT_TRUE(losses.OnLost(1, Loss()).report.has_value());
  EXPECT_THAT(losses.OnLost(1, Loss(0)).ask, IsEmpty());
  const auto next = losses.OnLost(0, Loss());
  EXPECT_THAT(next.ask, ElementsAre(1U)) << "the late answer counts for nothing";
  EXPECT_EQ(next.number, 1U);
  EXPECT_TRUE(losses.OnLost(1, Loss(1)).report.has_value());
}

TEST(ShardLosses, WhoHasToldIsNotAskedAnyMore) {
  ShardLosses losses(3);
  const auto first = losses.OnLost(1, Loss());
  EXPECT_TRUE(losses.IsAsked(0, first.number));
  EXPECT_TRUE(losses.HasTold(1));
  losses.OnLost(0, Loss());
  EXPECT_FALSE(losses.IsAsked(0, first.number)) << "the request has been overtaken";
  losses.OnLost(2, Loss());
  EXPECT_FALSE(losses.HasTold(0));
  EXPECT_FALSE(losses.IsAsked(0, first.number)) << "it is of a loss that is over";
}

TEST(ShardLosses, AShardThatCannotGoOnEndsAll) {
  ShardLosses losses(3);
  losses.OnLost(2, Loss());
  losses.OnLost(1, {});
  const auto last = losses.OnLost(0, Loss());
  EXPECT_EQ(last.ends_with, 1U);
  EXPECT_FALSE(last.report.has_value());
}

TEST(ShardReports, AreWhatTheMemberHoldsAtAll) {
  wire::MemberReport lead{
      .session_key = {}, .lineage = 1, .step = 4, .collectives = 9, .keeps_gradients = true};
  lead.ready = {.verdict = Verdict::kSkip, .digest = 3};
  wire::MemberReport other{
      .session_key = {}, .lineage = 2, .step = 4, .collectives = 5, .keeps_gradients = true};
  const std::vector<wire::MemberReport> nothing = {lead, other};
  EXPECT_EQ(ReportOfAll(nothing), lead);
  other.has_contributed = other.may_have_results = true;
  other.keeps_gradients = false;
  other.has_seen_results = other.in_collective = true;
  const std::vector<wire::MemberReport> reports = {lead, other};
  const wire::MemberReport all = ReportOfAll(reports);
  EXPECT_TRUE(all.has_contributed && all.may_have_results && all.has_seen_results);
  EXPECT_TRUE(all.in_collective);
  EXPECT_FALSE(all.keeps_gradients);
  EXPECT_EQ(all.lineage, 1U);
  EXPECT_EQ(all.collectives, 9U);
  EXPECT_EQ(all.ready, lead.ready);
}

// It was lost before shard 0 ended the step.
TEST(ShardReports, WhatAShardSaysOfAnEarlierStepIsOver) {
  const wire::MemberReport lead{.session_key = {}, .step = 5};
  const wire::MemberReport other{
      .session_key = {}, .step = 4, .has_contributed = true, .may_have_results = true};
  const std::vector<wire::MemberReport> reports = {lead, other};
  EXPECT_EQ(ReportOfAll(reports), lead);
}

TEST(ShardReports, WhoFollowsHasNothingToDecide) {
  wire::MemberReport own{
      .session_key = {}, .step = 4, .has_contributed = true, .may_have_results = true};
  own.collectives = 5;
  own.ready = {.verdict = Verdict::kApply};
  own.concluded = {0, 1};
  const wire::Roster roster{.number = 3, .ranks = {0, 2}};
  const wire::MemberReport report = ReportToFollow(own, roster);
  EXPECT_EQ(report,
            (wire::MemberReport{.session_key = {}, .step = 4, .collectives = 5, .roster = roster}));
}

}  // namespace
}  // namespace gradwire::client

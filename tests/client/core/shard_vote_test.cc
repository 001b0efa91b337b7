#include "client/core/shard_vote.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PreparedEffect Prepared(std::int64_t step, Verdict verdict = Verdict::kApply,
                        std::uint64_t digest = 1) {
  return {.step = step, .verdict = verdict, .digest = digest};
}

// What the last one makes of a step.
ShardVote::Outcome OutcomeOf(const std::vector<PreparedEffect>& shards,
                             const std::vector<std::uint32_t>& order) {
  ShardVote vote(static_cast<std::uint32_t>(shards.size()), shards.front().step);
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    EXPECT_EQ(*vote.OnPrepared(order[i], shards[order[i]]), std::nullopt);
  }
  return (*vote.OnPrepared(order.back(), shards[order.back()])).value();
}

TEST(ShardVote, SpeaksOnceWhenAllShardsHave) {
  ShardVote vote(3, 4);
  EXPECT_EQ(vote.step(), 4);
  EXPECT_EQ(*vote.OnPrepared(2, Prepared(4)), std::nullopt);
  EXPECT_EQ(*vote.OnPrepared(2, Prepared(4)), std::nullopt);
  EXPECT_THAT(vote.Missing(), ElementsAre(0U, 1U));
  EXPECT_EQ(*vote.OnPrepared(0, Prepared(4)), std::nullopt);
  EXPECT_NE(*vote.OnPrepared(1, Prepared(4)), std::nullopt);
  EXPECT_THAT(vote.Missing(), IsEmpty());
  EXPECT_EQ(*vote.OnPrepared(1, Prepared(4)), std::nullopt);
}

TEST(ShardVote, OneSkipIsEverybodys) {
  for (int skips = 0; skips < 8; ++skips) {
    std::vector<PreparedEffect> shards;
    for (int shard = 0; shard < 3; ++shard) {
      shards.push_back(Prepared(0, (skips >> shard & 1) != 0 ? Verdict::kSkip : Verdict::kApply));
    }
    EXPECT_EQ(OutcomeOf(shards, {0, 1, 2}).verdict, skips == 0 ? Verdict::kApply : Verdict::kSkip)
        << skips;
  }
}

// Members hear the shards in different orders, and must say the same.
TEST(ShardVote, TheDigestIsThatOfTheShardsInTheirOrder) {
  const std::vector<PreparedEffect> shards = {Prepared(3, Verdict::kApply, 7),
                                              Prepared(3, Verdict::kApply, 8),
                                              Prepared(3, Verdict::kApply, 9)};
  const std::uint64_t digest = OutcomeOf(shards, {0, 1, 2}).digest;
  EXPECT_EQ(OutcomeOf(shards, {2, 0, 1}).digest, digest);
  EXPECT_NE(OutcomeOf({shards[1], shards[0], shards[2]}, {0, 1, 2}).digest, digest);
  std::vector<PreparedEffect> later = shards;
  for (PreparedEffect& one : later) one.step = 4;
  EXPECT_NE(OutcomeOf(later, {0, 1, 2}).digest, digest);
}

TEST(ShardVote, TheNextStepBeginsFromNothing) {
  ShardVote vote(2);
  ASSERT_TRUE(vote.OnPrepared(0, Prepared(0)).ok());
  ASSERT_TRUE(vote.OnPrepared(1, Prepared(0)).ok());
  vote.Conclude(vote.step());
  EXPECT_EQ(vote.step(), 1);
  EXPECT_THAT(vote.Missing(), ElementsAre(0U, 1U));
  EXPECT_EQ(*vote.OnPrepared(0, Prepared(0)), std::nullopt) << "a resume repeats it";
  EXPECT_THAT(vote.Missing(), ElementsAre(0U, 1U));
}

TEST(ShardVote, RefusesWhatAShardCannotSay) {
  ShardVote vote(2, 5);
  EXPECT_THAT(std::string(vote.OnPrepared(1, Prepared(6)).status().message()),
              HasSubstr("shard 1 says of step 6 what does not fit step 5"));
  ASSERT_TRUE(vote.OnPrepared(1, Prepared(5, Verdict::kApply, 2)).ok());
  EXPECT_EQ(vote.OnPrepared(1, Prepared(5, Verdict::kApply, 3)).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(vote.OnPrepared(1, Prepared(5, Verdict::kSkip, 2)).status().code(),
            absl::StatusCode::kInternal);
}

// Its lead has missed the end of a step that it lacks results of.
TEST(ShardVote, ANewcomerGoesOnAfterTheStepThatItHearsOf) {
  ShardVote vote(2, 4);
  EXPECT_TRUE(vote.OnPrepared(0, Prepared(4)).ok());
  vote.Conclude(5);
  EXPECT_EQ(vote.step(), 6);
  EXPECT_THAT(vote.Missing(), ElementsAre(0U, 1U));
  EXPECT_TRUE(vote.OnPrepared(1, Prepared(6)).ok());
}

TEST(ShardVote, WhatLostShardsSaidIsVoid) {
  ShardVote vote(2, 4);
  EXPECT_TRUE(vote.OnPrepared(0, Prepared(4)).ok());
  vote.Restart();
  EXPECT_EQ(vote.step(), 4);
  EXPECT_THAT(vote.Missing(), ElementsAre(0U, 1U));
}

}  // namespace
}  // namespace gradwire::client

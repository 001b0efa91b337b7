// What becomes of a state on its way to and from several daemons, which are played here.
#include "client/shard_state.h"

#include <atomic>
#include <string>
#include <vector>

#include "base/error_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "hooks/state_parts.h"

namespace gradwire::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<std::string> kTwo = {"a:1", "b:1"};

std::string Part(std::uint32_t shard, int step) {
  return WriteSafetensors({.metadata = {{kShardKey, ShardText(shard, 2)},
                                        {kCompressedKey, "1"},
                                        {kStepKey, std::to_string(step)}},
                           .tensors = {}});
}

// As a shard that has not heard of the end of a step.
absl::Status Concluding() {
  return Coded(ErrorCode::kStateInStep, absl::UnavailableError("has not heard"));
}

TEST(FetchWholeState, AsksAgainWhileADaemonIsAStepBehind) {
  std::atomic<int> asked = 0;
  const auto whole = FetchWholeState(
      kTwo,
      [&](std::size_t shard) {
        return Part(static_cast<std::uint32_t>(shard), shard == 0 || ++asked > 3 ? 5 : 4);
      },
      absl::Seconds(60));
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(ReadSafetensors(*whole)->metadata.at(kStepKey), "5");
}

TEST(FetchWholeState, SaysWhenTheDaemonsStayApart) {
  const auto whole = FetchWholeState(
      kTwo,
      [](std::size_t shard) {
        return Part(static_cast<std::uint32_t>(shard), static_cast<int>(shard));
      },
      absl::ZeroDuration());
  EXPECT_THAT(
      std::string(whole.status().message()),
      AllOf(HasSubstr("shard 0's is after step 0, shard 1's after 1"), HasSubstr("[GW504]")));
}

TEST(FetchWholeState, NamesTheDaemonThatRefuses) {
  const auto whole = FetchWholeState(
      kTwo,
      [](std::size_t shard) -> absl::StatusOr<std::string> {
        if (shard == 1) return absl::NotFoundError("no such session");
        return Part(0, 1);
      },
      absl::Seconds(60));
  EXPECT_EQ(whole.status(), absl::NotFoundError("b:1: no such session"));
}

TEST(LoadWholeState, GoesToEachDaemonAndWaitsForOneThatConcludes) {
  std::vector<std::size_t> asked;
  const LoadedState loaded = LoadWholeState(
      kTwo,
      [&](std::size_t shard) {
        asked.push_back(shard);
        return asked.size() == 2 ? Concluding() : absl::OkStatus();
      },
      absl::Seconds(60));
  EXPECT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_THAT(asked, ElementsAre(0, 1, 1));
  EXPECT_FALSE(loaded.is_half());
}

TEST(LoadWholeState, WhatTheFirstOneRefusesChangesNothing) {
  std::vector<std::size_t> asked;
  const LoadedState loaded = LoadWholeState(
      kTwo,
      [&](std::size_t shard) {
        asked.push_back(shard);
        return absl::InvalidArgumentError("damaged");
      },
      absl::Seconds(60));
  EXPECT_EQ(loaded.status, absl::InvalidArgumentError("a:1: damaged"));
  EXPECT_FALSE(loaded.is_half());
  EXPECT_THAT(asked, ElementsAre(0));
  // It never heard: nothing has changed there either.
  EXPECT_FALSE(LoadWholeState(
                   kTwo, [](std::size_t) { return Concluding(); }, absl::ZeroDuration())
                   .is_half());
}

TEST(LoadWholeState, WhatALaterOneRefusesIsHalfAState) {
  const LoadedState loaded = LoadWholeState(
      kTwo,
      [](std::size_t shard) {
        return shard == 0 ? absl::OkStatus() : absl::FailedPreconditionError("in a step");
      },
      absl::Seconds(60));
  EXPECT_TRUE(loaded.is_half());
  EXPECT_EQ(loaded.status, absl::FailedPreconditionError(
                               "a new state is on 1 of 2 daemons only, because b:1: in a step"));
}

TEST(LoadWholeState, AnAnswerThatIsLostMayHideAState) {
  const auto lost = [](std::size_t) { return absl::DeadlineExceededError("late"); };
  const LoadedState loaded = LoadWholeState(kTwo, lost, absl::Seconds(60));
  EXPECT_TRUE(loaded.is_half());
  EXPECT_THAT(std::string(loaded.status.message()),
              StartsWith("a new state is on 0 of 2 daemons only, or on one more, because a:1"));
  // One daemon has the one or the other.
  EXPECT_FALSE(LoadWholeState({"a:1"}, lost, absl::Seconds(60)).is_half());
}

}  // namespace
}  // namespace gradwire::client

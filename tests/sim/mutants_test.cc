// The simulation's teeth: built with the seeded bugs of base/mutants.h, each of which must be
// caught within the seeds that the simulation test runs.
#include "base/mutants.h"

#include <cstdio>

#include "gtest/gtest.h"
#include "tests/sim/group_simulation.h"
#include "tests/sim/recovery_simulation.h"
#include "tests/sim/shard_recovery_simulation.h"
#include "tests/sim/shard_simulation.h"
#include "tests/sim/simulation.h"

namespace gradwire::sim {
namespace {

constexpr std::uint64_t kSeeds = 10'000;

struct Case {
  Mutant mutant;
  const char* name;
};

class Mutants : public ::testing::TestWithParam<Case> {};

TEST_P(Mutants, IsCaught) {
  active_mutant = GetParam().mutant;
  std::string caught;
  std::uint64_t seed = 0;
  while (seed < kSeeds && (caught = RunSeed(seed).violation).empty()) ++seed;
  active_mutant = Mutant::kNone;
  ASSERT_NE(caught, "") << GetParam().name << " was not caught in " << kSeeds << " seeds";
  std::printf("%s: seed %llu: %s\n", GetParam().name, static_cast<unsigned long long>(seed),
              caught.c_str());
  EXPECT_EQ(RunSeed(seed).violation, "") << "the seed fails without the mutant too";
}

INSTANTIATE_TEST_SUITE_P(
    All, Mutants,
    ::testing::Values(Case{Mutant::kGenerationNotCompared, "GenerationNotCompared"},
                      Case{Mutant::kAttemptNotCompared, "AttemptNotCompared"},
                      Case{Mutant::kMemberDroppedPerBucket, "MemberDroppedPerBucket"},
                      Case{Mutant::kDuplicateCountedTwice, "DuplicateCountedTwice"},
                      Case{Mutant::kCommitAnnouncedEarly, "CommitAnnouncedEarly"},
                      Case{Mutant::kStateTouchedBeforeCommit, "StateTouchedBeforeCommit"},
                      Case{Mutant::kGrantDeadlock, "GrantDeadlock"},
                      Case{Mutant::kSharedStateNotResumed, "SharedStateNotResumed"},
                      Case{Mutant::kCoordinatorCommitsSkips, "CoordinatorCommitsSkips"},
                      Case{Mutant::kReducingStartsOver, "ReducingStartsOver"},
                      Case{Mutant::kOldStreamHeard, "OldStreamHeard"},
                      Case{Mutant::kSurvivorBlamed, "SurvivorBlamed"},
                      Case{Mutant::kEmptyBucketNotAwaited, "EmptyBucketNotAwaited"},
                      Case{Mutant::kBucketStaysOpen, "BucketStaysOpen"},
                      Case{Mutant::kDrawsBeforePlan, "DrawsBeforePlan"},
                      Case{Mutant::kModelNotCompared, "ModelNotCompared"},
                      Case{Mutant::kWindowsIgnored, "WindowsIgnored"},
                      Case{Mutant::kResetNotRepeated, "ResetNotRepeated"},
                      Case{Mutant::kOldStateCounts, "OldStateCounts"},
                      Case{Mutant::kCollectiveNotResumed, "CollectiveNotResumed"},
                      Case{Mutant::kSendQueueUnbounded, "SendQueueUnbounded"},
                      Case{Mutant::kSkipCommitted, "SkipCommitted"},
                      Case{Mutant::kWindowExceeded, "WindowExceeded"},
                      Case{Mutant::kEagerBytesForgotten, "EagerBytesForgotten"},
                      Case{Mutant::kBroadcastNotPaced, "BroadcastNotPaced"},
                      Case{Mutant::kParametersStayUsed, "ParametersStayUsed"},
                      Case{Mutant::kRetryExtendsGrace, "RetryExtendsGrace"},
                      Case{Mutant::kJoinNeverTimesOut, "JoinNeverTimesOut"},
                      Case{Mutant::kLossNotDeclared, "LossNotDeclared"},
                      Case{Mutant::kPausedStepGranted, "PausedStepGranted"},
                      Case{Mutant::kPausedChunksForgotten, "PausedChunksForgotten"}),
    [](const ::testing::TestParamInfo<Case>& tested) { return std::string(tested.param.name); });

class GroupMutants : public ::testing::TestWithParam<Case> {};

TEST_P(GroupMutants, IsCaught) {
  active_mutant = GetParam().mutant;
  std::string caught;
  std::uint64_t seed = 0;
  while (seed < kSeeds && (caught = GroupSimulation(seed).Run()).empty()) ++seed;
  active_mutant = Mutant::kNone;
  ASSERT_NE(caught, "") << GetParam().name << " was not caught in " << kSeeds << " seeds";
  std::printf("%s: seed %llu: %s\n", GetParam().name, static_cast<unsigned long long>(seed),
              caught.c_str());
  EXPECT_EQ(GroupSimulation(seed).Run(), "") << "the seed fails without the mutant too";
}

INSTANTIATE_TEST_SUITE_P(
    All, GroupMutants,
    ::testing::Values(Case{Mutant::kExchangeOrderedEarly, "ExchangeOrderedEarly"},
                      Case{Mutant::kGatherOrderedEarly, "GatherOrderedEarly"},
                      Case{Mutant::kOrdersNotResumed, "OrdersNotResumed"},
                      Case{Mutant::kGroupBucketsNotResumed, "GroupBucketsNotResumed"},
                      Case{Mutant::kEndToldEarly, "EndToldEarly"},
                      Case{Mutant::kStepEndsBeforeGather, "StepEndsBeforeGather"},
                      Case{Mutant::kAloneGathersInTurn, "AloneGathersInTurn"},
                      Case{Mutant::kShareNotAcknowledged, "ShareNotAcknowledged"}),
    [](const ::testing::TestParamInfo<Case>& tested) { return std::string(tested.param.name); });

class GroupRecoveryMutants : public ::testing::TestWithParam<Case> {};

TEST_P(GroupRecoveryMutants, IsCaught) {
  active_mutant = GetParam().mutant;
  std::string caught;
  std::uint64_t seed = 0;
  const auto run = [](std::uint64_t one) { return GroupSimulation(one, /*recovers=*/true).Run(); };
  while (seed < kSeeds && (caught = run(seed)).empty()) ++seed;
  active_mutant = Mutant::kNone;
  ASSERT_NE(caught, "") << GetParam().name << " was not caught in " << kSeeds << " seeds";
  std::printf("%s: seed %llu: %s\n", GetParam().name, static_cast<unsigned long long>(seed),
              caught.c_str());
  EXPECT_EQ(run(seed), "") << "the seed fails without the mutant too";
}

INSTANTIATE_TEST_SUITE_P(
    All, GroupRecoveryMutants,
    ::testing::Values(Case{Mutant::kGroupStepGoesOn, "GroupStepGoesOn"},
                      Case{Mutant::kStepEndsBeforeGather, "StepEndsBeforeGather"},
                      Case{Mutant::kMeanOfAllRanks, "MeanOfAllRanks"},
                      Case{Mutant::kSharesNotForgotten, "SharesNotForgotten"}),
    [](const ::testing::TestParamInfo<Case>& tested) { return std::string(tested.param.name); });

class ShardMutants : public ::testing::TestWithParam<Case> {};

TEST_P(ShardMutants, IsCaught) {
  active_mutant = GetParam().mutant;
  std::string caught;
  std::uint64_t seed = 0;
  while (seed < kSeeds && (caught = ShardSimulation(MakeShardScenario(seed)).Run()).empty()) ++seed;
  active_mutant = Mutant::kNone;
  ASSERT_NE(caught, "") << GetParam().name << " was not caught in " << kSeeds << " seeds";
  std::printf("%s: seed %llu: %s\n", GetParam().name, static_cast<unsigned long long>(seed),
              caught.c_str());
  EXPECT_EQ(ShardSimulation(MakeShardScenario(seed)).Run(), "")
      << "the seed fails without the mutant too";
}

INSTANTIATE_TEST_SUITE_P(
    All, ShardMutants,
    ::testing::Values(Case{Mutant::kShardsDecideAlone, "ShardsDecideAlone"},
                      Case{Mutant::kVerdictNotCombined, "VerdictNotCombined"},
                      Case{Mutant::kStateBeforeConclusion, "StateBeforeConclusion"},
                      Case{Mutant::kConclusionNotRepeated, "ConclusionNotRepeated"},
                      Case{Mutant::kReadyNotRepeated, "ReadyNotRepeated"},
                      Case{Mutant::kSliceSentTwice, "SliceSentTwice"},
                      Case{Mutant::kFailureNotPassedOn, "FailureNotPassedOn"}),
    [](const ::testing::TestParamInfo<Case>& tested) { return std::string(tested.param.name); });

class LeafMutants : public ::testing::TestWithParam<Case> {};

TEST_P(LeafMutants, IsCaught) {
  active_mutant = GetParam().mutant;
  std::string caught;
  std::uint64_t seed = 0;
  const auto run = [](std::uint64_t one) { return ShardSimulation(MakeLeafScenario(one)).Run(); };
  while (seed < kSeeds && (caught = run(seed)).empty()) ++seed;
  active_mutant = Mutant::kNone;
  ASSERT_NE(caught, "") << GetParam().name << " was not caught in " << kSeeds << " seeds";
  std::printf("%s: seed %llu: %s\n", GetParam().name, static_cast<unsigned long long>(seed),
              caught.c_str());
  EXPECT_EQ(run(seed), "") << "the seed fails without the mutant too";
}

INSTANTIATE_TEST_SUITE_P(
    All, LeafMutants,
    ::testing::Values(Case{Mutant::kLeafDecidesAlone, "LeafDecidesAlone"},
                      Case{Mutant::kLeafWeightForgotten, "LeafWeightForgotten"}),
    [](const ::testing::TestParamInfo<Case>& tested) { return std::string(tested.param.name); });

class RecoveryMutants : public ::testing::TestWithParam<Case> {};

TEST_P(RecoveryMutants, IsCaught) {
  active_mutant = GetParam().mutant;
  std::string caught;
  std::uint64_t seed = 0;
  while (seed < kSeeds && (caught = RecoverySimulation(seed).Run()).empty()) ++seed;
  active_mutant = Mutant::kNone;
  ASSERT_NE(caught, "") << GetParam().name << " was not caught in " << kSeeds << " seeds";
  std::printf("%s: seed %llu: %s\n", GetParam().name, static_cast<unsigned long long>(seed),
              caught.c_str());
  EXPECT_EQ(RecoverySimulation(seed).Run(), "") << "the seed fails without the mutant too";
}

INSTANTIATE_TEST_SUITE_P(
    All, RecoveryMutants,
    ::testing::Values(Case{Mutant::kSessionKeyNotCompared, "SessionKeyNotCompared"},
                      Case{Mutant::kReadyOfOneConcludes, "ReadyOfOneConcludes"},
                      Case{Mutant::kStepWithResultsGoesOn, "StepWithResultsGoesOn"},
                      Case{Mutant::kConcludesBeforeReady, "ConcludesBeforeReady"},
                      Case{Mutant::kResultsInPlaceForgotten, "ResultsInPlaceForgotten"},
                      Case{Mutant::kReducedAgainFromResults, "ReducedAgainFromResults"},
                      Case{Mutant::kSeenResultsOfOthersStay, "SeenResultsOfOthersStay"},
                      Case{Mutant::kMeanOfAllRanks, "MeanOfAllRanks"},
                      Case{Mutant::kRosterUnclaimed, "RosterUnclaimed"},
                      Case{Mutant::kClaimOfOthersIgnored, "ClaimOfOthersIgnored"},
                      Case{Mutant::kOwnStateNotTold, "OwnStateNotTold"},
                      Case{Mutant::kStateNotTakenBack, "StateNotTakenBack"},
                      Case{Mutant::kNewcomerHasModel, "NewcomerHasModel"},
                      Case{Mutant::kResidualCountedTwice, "ResidualCountedTwice"},
                      Case{Mutant::kSkipSettledAsApplied, "SkipSettledAsApplied"},
                      Case{Mutant::kAccountsOfGoneForgotten, "AccountsOfGoneForgotten"},
                      Case{Mutant::kHandedOverTwice, "HandedOverTwice"},
                      Case{Mutant::kHandOverForgotten, "HandOverForgotten"},
                      Case{Mutant::kLeavesAtOnce, "LeavesAtOnce"}),
    [](const ::testing::TestParamInfo<Case>& tested) { return std::string(tested.param.name); });

class LateMutants : public ::testing::TestWithParam<Case> {};

TEST_P(LateMutants, IsCaught) {
  active_mutant = GetParam().mutant;
  std::string caught;
  std::uint64_t seed = 0;
  const auto run = [](std::uint64_t one) { return RecoverySimulation(one, /*late=*/true).Run(); };
  while (seed < kSeeds && (caught = run(seed)).empty()) ++seed;
  active_mutant = Mutant::kNone;
  ASSERT_NE(caught, "") << GetParam().name << " was not caught in " << kSeeds << " seeds";
  std::printf("%s: seed %llu: %s\n", GetParam().name, static_cast<unsigned long long>(seed),
              caught.c_str());
  EXPECT_EQ(run(seed), "") << "the seed fails without the mutant too";
}

INSTANTIATE_TEST_SUITE_P(
    All, LateMutants,
    ::testing::Values(Case{Mutant::kMissedForgotten, "MissedForgotten"},
                      Case{Mutant::kMissedCounted, "MissedCounted"},
                      Case{Mutant::kStepWithResultsGoesOn, "StepWithResultsGoesOn"}),
    [](const ::testing::TestParamInfo<Case>& tested) { return std::string(tested.param.name); });

class ShardRecoveryMutants : public ::testing::TestWithParam<Case> {};

TEST_P(ShardRecoveryMutants, IsCaught) {
  active_mutant = GetParam().mutant;
  std::string caught;
  std::uint64_t seed = 0;
  while (seed < kSeeds && (caught = ShardRecoverySimulation(seed).Run()).empty()) ++seed;
  active_mutant = Mutant::kNone;
  ASSERT_NE(caught, "") << GetParam().name << " was not caught in " << kSeeds << " seeds";
  std::printf("%s: seed %llu: %s\n", GetParam().name, static_cast<unsigned long long>(seed),
              caught.c_str());
  EXPECT_EQ(ShardRecoverySimulation(seed).Run(), "") << "the seed fails without the mutant too";
}

INSTANTIATE_TEST_SUITE_P(All, ShardRecoveryMutants,
                         ::testing::Values(Case{Mutant::kReportOfLeadOnly, "ReportOfLeadOnly"},
                                           Case{Mutant::kOldLifeFollowed, "OldLifeFollowed"},
                                           Case{Mutant::kVoteOfLostLife, "VoteOfLostLife"}),
                         [](const ::testing::TestParamInfo<Case>& tested) {
                           return std::string(tested.param.name);
                         });

}  // namespace
}  // namespace gradwire::sim

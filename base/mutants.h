// Seeded bugs. Tests must catch each of them; a normal build has none of them.
#pragma once

#include <atomic>
#include <cstdint>

namespace gradwire {

// In the cores, for the simulation.
enum class Mutant : std::uint8_t {
  kNone,
  kGenerationNotCompared,
  kAttemptNotCompared,
  kMemberDroppedPerBucket,
  kDuplicateCountedTwice,
  kCommitAnnouncedEarly,
  kStateTouchedBeforeCommit,
  kGrantDeadlock,
  kSharedStateNotResumed,
  kCoordinatorCommitsSkips,
  kReducingStartsOver,
  kOldStreamHeard,
  kSurvivorBlamed,
  kEmptyBucketNotAwaited,
  kBucketStaysOpen,
  kDrawsBeforePlan,
  kModelNotCompared,
  kWindowsIgnored,
  kResetNotRepeated,
  kOldStateCounts,
  kCollectiveNotResumed,
  kSendQueueUnbounded,
  kSkipCommitted,
  kWindowExceeded,
  kEagerBytesForgotten,
  kBroadcastNotPaced,
  kParametersStayUsed,
  kRetryExtendsGrace,
  kJoinNeverTimesOut,
  kLossNotDeclared,
  kPausedStepGranted,
  kPausedChunksForgotten,
  // Of node groups.
  kExchangeOrderedEarly,
  kGatherOrderedEarly,
  kOrdersNotResumed,
  kGroupBucketsNotResumed,
  kEndToldEarly,
  kStepEndsBeforeGather,
  kAloneGathersInTurn,
  kShareNotAcknowledged,
  // Of sessions with several shards.
  kShardsDecideAlone,
  kVerdictNotCombined,
  kStateBeforeConclusion,
  kConclusionNotRepeated,
  kReadyNotRepeated,
  kSliceSentTwice,
  kFailureNotPassedOn,
  kReportOfLeadOnly,
  kOldLifeFollowed,
  kVoteOfLostLife,
  // Of sessions that outlive their daemon.
  kSessionKeyNotCompared,
  kReadyOfOneConcludes,
  kStepWithResultsGoesOn,
  kOwnStateNotTold,
  kNewcomerHasModel,
  kStateNotTakenBack,
  kConcludesBeforeReady,
  kResultsInPlaceForgotten,
  kReducedAgainFromResults,
  kSeenResultsOfOthersStay,
  kMeanOfAllRanks,
  // Of leaves.
  kLeafDecidesAlone,
  kLeafWeightForgotten,
  // Of the ledger.
  kResidualCountedTwice,
  kSkipSettledAsApplied,
  kAccountsOfGoneForgotten,
  // Of members that leave, or are late.
  kHandedOverTwice,
  kHandOverForgotten,
  kMissedForgotten,
  kMissedCounted,
  // A roster without a majority begins without its claim at the arbiter.
  kRosterUnclaimed,
  // A roster is claimed after one that nobody here was in.
  kClaimOfOthersIgnored,
  // The open step of a session with node groups goes on after the loss of its daemon.
  kGroupStepGoesOn,
  kSharesNotForgotten,
  // A member leaves that others may need to learn how the last step ended.
  kLeavesAtOnce,
};

#ifdef GRADWIRE_CORE_MUTANTS
// One simulation at a time per thread.
inline thread_local Mutant active_mutant = Mutant::kNone;
inline bool IsActive(Mutant mutant) { return active_mutant == mutant; }
#else
constexpr bool IsActive(Mutant) { return false; }
#endif

// Waits for a GPU that are left out. Late streams (tests/cuda) must show each of them.
enum class DeviceMutant : std::uint8_t {
  kNone,
  kGradientsNotAwaited,
  kChunkSentEarly,
  kBucketDoneEarly,
  kPinnedMemoryReusedEarly,
  kDownloadNotAwaited,
};

#ifdef GRADWIRE_DEVICE_MUTANTS
// The process's, as its threads take part in one reduction.
inline std::atomic<DeviceMutant> active_device_mutant = DeviceMutant::kNone;
inline bool IsActive(DeviceMutant mutant) { return active_device_mutant == mutant; }
#else
constexpr bool IsActive(DeviceMutant) { return false; }
#endif

}  // namespace gradwire

// Seeded bugs. The simulation must catch each of them; a normal build has none of them.
#pragma once

#include <cstdint>

namespace gradwire {

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
};

#ifdef GRADWIRE_CORE_MUTANTS
// One simulation at a time per thread.
inline thread_local Mutant active_mutant = Mutant::kNone;
inline bool IsActive(Mutant mutant) { return active_mutant == mutant; }
#else
constexpr bool IsActive(Mutant) { return false; }
#endif

}  // namespace gradwire

// What happened in the simulation of shards that are lost, so that a test can show that the faults
// are real.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gradwire::sim {

enum class ShardRecoveryCount : std::uint8_t {
  kRuns,
  kThreeShards,
  kSlicedBuckets,
  kDividedBuckets,
  kApplied,
  kSkippedForValues,
  kSkipsOfOthers,
  kDropped,
  kShardsKilled,
  kKilledTogether,
  kHandedOver,
  kLeadLostWhileGathering,
  kOtherLostWhileGathering,
  kSoonAfterAnother,
  kCuts,
  kCutsWhileGathering,
  kAskedToGather,
  kAskedWithoutPlace,
  kOldAsks,
  kJoinsGivenUp,
  kLateJoins,
  kLatePushes,
  kLateDevices,
  kClosedByJoin,
  kRefusedLives,
  kConcludedByReports,
  kFollowed,
  kWentOn,
  kReducedAgain,
  kInPlace,
  kStatesTakenBack,
  kDrawPlans,
  kBarriers,
  kBroadcasts,
  kLedgersClosed,
  kNumCounts
};

using ShardRecoveryCounts =
    std::array<std::uint64_t, static_cast<std::size_t>(ShardRecoveryCount::kNumCounts)>;

inline const char* Name(ShardRecoveryCount count) {
  static constexpr std::array kNames = {"runs",
                                        "with three shards",
                                        "buckets in slices",
                                        "buckets divided by parameters",
                                        "applied",
                                        "skipped for values",
                                        "skipped for another shard's values",
                                        "dropped",
                                        "shards killed",
                                        "several killed at once",
                                        "handed over",
                                        "shard 0 lost while gathering",
                                        "another shard lost while gathering",
                                        "lost soon after another loss",
                                        "cuts",
                                        "cuts while gathering",
                                        "asked to gather",
                                        "asked without a place",
                                        "asked too late",
                                        "joins given up",
                                        "late joins",
                                        "late pushes",
                                        "verdicts that wait for the device",
                                        "closed by a join of a later life",
                                        "joins of an earlier life refused",
                                        "concluded by reports",
                                        "followed",
                                        "went on",
                                        "reduced again",
                                        "in place",
                                        "states taken back",
                                        "draw plans",
                                        "barriers",
                                        "broadcasts",
                                        "ledgers closed"};
  static_assert(kNames.size() == static_cast<std::size_t>(ShardRecoveryCount::kNumCounts));
  return kNames[static_cast<std::size_t>(count)];
}

}  // namespace gradwire::sim

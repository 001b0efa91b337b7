// What happened in the simulation of shards and leaves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace gradwire::sim {

enum class ShardCount : std::uint8_t {
  kSteps,
  kSkips,
  kSkipsOfOthers,
  kLowRankSteps,
  kSlicedBuckets,
  kDividedBuckets,
  kEmptyShards,
  kOneShard,
  kAlone,
  kDrawPlans,
  kResumes,
  kResumesAhead,
  kResumesBehind,
  kLostReady,
  kLostConcluded,
  kLostPrepared,
  kLostStepDone,
  kEarlyRestarts,
  kEarlyLeaves,
  kDeaths,
  kCutOffs,
  kEvictions,
  kLastWords,
  kFailures,
  // Of seeds with leaves only.
  kLeaves,
  kWeighedBuckets,
  kEmptyBuckets,
  kBarriers,
  kBroadcasts,
  kRelays,
  kFinished,
  kFailedSeeds,
  kLeafDeaths,
  kAbsences,
  kQuits,
  kLostWords,
  kNumCounts,
};
constexpr std::size_t kShardCounts = static_cast<std::size_t>(ShardCount::kLeaves);

std::string Name(ShardCount count);
using ShardCounts = std::array<std::uint64_t, static_cast<std::size_t>(ShardCount::kNumCounts)>;

}  // namespace gradwire::sim

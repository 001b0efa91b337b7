// Thousands of sessions with several shards, each from a seed. GRADWIRE_SIM_SEED=N runs one;
// GRADWIRE_SIM_SEEDS=N runs that many.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/sim/shard_scenario.h"

namespace gradwire::sim {

// Fails the test for each seed whose session breaks a promise, with what reproduces it, and for
// each of the first `kinds` of events that all seeds together have not seen `least` times.
void RunShardSeeds(ShardScenario (*make)(std::uint64_t seed), std::size_t kinds,
                   std::uint64_t least);

}  // namespace gradwire::sim

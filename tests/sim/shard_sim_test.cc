// Sessions with several shards. See RunShardSeeds.
#include "gtest/gtest.h"
#include "tests/sim/shard_counts.h"
#include "tests/sim/shard_seeds.h"

namespace gradwire::sim {
namespace {

TEST(ShardSimulation, KeepsItsPromisesOnEverySeed) {
  RunShardSeeds(&MakeShardScenario, kShardCounts, 50);
}

}  // namespace
}  // namespace gradwire::sim

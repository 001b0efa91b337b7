// Sessions with several shards. See RunShardSeeds.
#include "gtest/gtest.h"
#include "tests/sim/shard_seeds.h"

namespace gradwire::sim {
namespace {

TEST(ShardSimulation, KeepsItsPromisesOnEverySeed) { RunShardSeeds(&MakeShardScenario, 50); }

}  // namespace
}  // namespace gradwire::sim

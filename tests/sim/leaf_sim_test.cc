// Sessions with leaf daemons below one shard or several. See RunShardSeeds.
#include "gtest/gtest.h"
#include "tests/sim/shard_counts.h"
#include "tests/sim/shard_seeds.h"

namespace gradwire::sim {
namespace {

TEST(LeafSimulation, KeepsItsPromisesOnEverySeed) {
  RunShardSeeds(&MakeLeafScenario, ShardCounts().size(), 30);
}

}  // namespace
}  // namespace gradwire::sim

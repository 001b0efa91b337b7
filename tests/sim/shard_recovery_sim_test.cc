// 20,000 seeds of sessions that outlive the loss of their shards; each fault must have happened
// often.
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "tests/sim/shard_recovery_simulation.h"

namespace gradwire::sim {
namespace {

constexpr std::uint64_t kSeeds = 20'000;

TEST(ShardRecoverySimulation, NoMemberAppliesWhatAnotherCannot) {
  ShardRecoveryCounts counts{};
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    ShardRecoverySimulation simulation(seed);
    ASSERT_EQ(simulation.Run(), "");
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += simulation.counts()[i];
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const char* const name = Name(static_cast<ShardRecoveryCount>(i));
    std::printf("%s: %llu\n", name, static_cast<unsigned long long>(counts[i]));
    EXPECT_GT(counts[i], 100U) << name;
  }
}

}  // namespace
}  // namespace gradwire::sim

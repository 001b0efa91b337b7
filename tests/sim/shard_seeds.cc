#include "tests/sim/shard_seeds.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/sim/environment.h"
#include "tests/sim/shard_simulation.h"

namespace gradwire::sim {
namespace {

constexpr std::uint64_t kSeeds = 10'000;

}  // namespace

void RunShardSeeds(ShardScenario (*make)(std::uint64_t seed), std::size_t kinds,
                   std::uint64_t least) {
  const std::uint64_t first = FromEnvironment("GRADWIRE_SIM_SEED", 0);
  const bool one = std::getenv("GRADWIRE_SIM_SEED") != nullptr;
  const std::uint64_t seeds = one ? 1 : FromEnvironment("GRADWIRE_SIM_SEEDS", kSeeds);
  const auto began = std::chrono::steady_clock::now();
  ShardCounts counts{};
  int violations = 0;
  for (std::uint64_t seed = first; seed < first + seeds && violations < 3; ++seed) {
    const ShardScenario scenario = make(seed);
    ShardSimulation simulation(scenario);
    const std::string violation = simulation.Run();
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += simulation.counts()[i];
    if (violation.empty()) continue;
    ++violations;
    ADD_FAILURE() << "seed " << seed << ": " << violation << "\n"
                  << Describe(scenario) << "\nreproduce with GRADWIRE_SIM_SEED=" << seed;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("%llu seeds in %.1f s\n", static_cast<unsigned long long>(seeds), took.count());
  for (std::size_t i = 0; i < kinds; ++i) {
    const std::string name = Name(static_cast<ShardCount>(i));
    std::printf("  %-24s %llu\n", name.c_str(), static_cast<unsigned long long>(counts[i]));
    if (seeds < kSeeds || violations > 0) continue;
    EXPECT_GE(counts[i], least) << name;
  }
}

}  // namespace gradwire::sim

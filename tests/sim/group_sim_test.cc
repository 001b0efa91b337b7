// Thousands of sessions with node groups, each from a seed. GRADWIRE_SIM_SEED=N runs one;
// GRADWIRE_SIM_SEEDS=N runs that many.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "gtest/gtest.h"
#include "tests/sim/environment.h"
#include "tests/sim/group_simulation.h"

namespace gradwire::sim {
namespace {

constexpr std::uint64_t kSeeds = 10'000;
constexpr std::uint64_t kRecoverySeeds = 4'000;  // which take longer
// Each kind of event must have happened this often in so many seeds.
constexpr std::uint64_t kLeastOfEach = 50;

void RunSeeds(bool recovers, GroupCount first_count, GroupCount last_count) {
  const std::uint64_t first = FromEnvironment("GRADWIRE_SIM_SEED", 0);
  const bool one = std::getenv("GRADWIRE_SIM_SEED") != nullptr;
  const std::uint64_t enough = recovers ? kRecoverySeeds : kSeeds;
  const std::uint64_t seeds = one ? 1 : FromEnvironment("GRADWIRE_SIM_SEEDS", enough);
  const auto began = std::chrono::steady_clock::now();
  GroupCounts counts{};
  int violations = 0;
  for (std::uint64_t seed = first; seed < first + seeds && violations < 3; ++seed) {
    GroupSimulation simulation(seed, recovers);
    const std::string violation = simulation.Run();
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += simulation.counts()[i];
    if (violation.empty()) continue;
    ++violations;
    ADD_FAILURE() << "seed " << seed << ": " << violation << "\n"
                  << Describe(MakeGroupScenario(seed, recovers))
                  << "\nreproduce with GRADWIRE_SIM_SEED=" << seed;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("%llu seeds in %.1f s\n", static_cast<unsigned long long>(seeds), took.count());
  for (auto i = static_cast<std::size_t>(first_count); i <= static_cast<std::size_t>(last_count);
       ++i) {
    const std::string name = Name(static_cast<GroupCount>(i));
    std::printf("  %-28s %llu\n", name.c_str(), static_cast<unsigned long long>(counts[i]));
    if (seeds < enough || violations > 0) continue;
    EXPECT_GE(counts[i], kLeastOfEach) << name;
  }
}

TEST(GroupSimulation, KeepsItsPromisesOnEverySeed) {
  RunSeeds(/*recovers=*/false, GroupCount::kSteps, GroupCount::kMembersAlone);
}

TEST(GroupSimulation, OutlivesDaemonsAndMembersOnEverySeed) {
  RunSeeds(/*recovers=*/true, GroupCount::kMembersAlone, GroupCount::kSharesMoved);
}

}  // namespace
}  // namespace gradwire::sim

// Sessions with late members, whose daemons are lost, too; each kind of lateness must have happened
// often.
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "tests/sim/recovery_simulation.h"

namespace gradwire::sim {
namespace {

constexpr std::uint64_t kSeeds = 6'000;

TEST(LateSimulation, NoGradientIsLostOrCountsTwice) {
  RecoverySimulation::LateCounts all;
  std::uint64_t dropped = 0;
  std::uint64_t closed = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    RecoverySimulation simulation(seed, /*late=*/true);
    ASSERT_EQ(simulation.Run(), "");
    const RecoverySimulation::LateCounts& counts = simulation.late_counts();
    all.missed += counts.missed;
    all.past += counts.past;
    all.waiting += counts.waiting;
    const auto count = [&](RecoveryCount of) {
      return simulation.counts()[static_cast<std::size_t>(of)];
    };
    dropped += count(RecoveryCount::kDropped);
    closed += count(RecoveryCount::kLedgersClosed);
  }
  std::printf(
      "steps missed: %llu, buckets of past steps: %llu, members with late gradients: %llu, "
      "steps dropped: %llu\n",
      static_cast<unsigned long long>(all.missed), static_cast<unsigned long long>(all.past),
      static_cast<unsigned long long>(all.waiting), static_cast<unsigned long long>(dropped));
  EXPECT_GT(all.missed, 1000U);
  EXPECT_GT(all.past, 100U);
  EXPECT_GT(all.waiting, 100U);
  EXPECT_GT(dropped, 100U);
  EXPECT_GT(closed, 1000U);
}

}  // namespace
}  // namespace gradwire::sim

// Sessions with late members, whose daemons and members are lost, too, or leave; each kind of
// lateness must have happened often.
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
  std::uint64_t killed = 0;
  std::uint64_t left = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    RecoverySimulation simulation(seed, /*late=*/true);
    ASSERT_EQ(simulation.Run(), "");
    const RecoverySimulation::LateCounts& counts = simulation.late_counts();
    all.missed += counts.missed;
    all.past += counts.past;
    all.waiting += counts.waiting;
    all.lost += counts.lost;
    all.given += counts.given;
    const auto count = [&](RecoveryCount of) {
      return simulation.counts()[static_cast<std::size_t>(of)];
    };
    dropped += count(RecoveryCount::kDropped);
    closed += count(RecoveryCount::kLedgersClosed);
    killed += count(RecoveryCount::kMembersKilled);
    left += count(RecoveryCount::kLeft);
  }
  std::printf(
      "steps missed: %llu, buckets of past steps: %llu, members with late gradients: %llu, "
      "steps dropped: %llu, members killed: %llu, left: %llu, lost with late gradients: %llu, that "
      "gave them to others: %llu\n",
      static_cast<unsigned long long>(all.missed), static_cast<unsigned long long>(all.past),
      static_cast<unsigned long long>(all.waiting), static_cast<unsigned long long>(dropped),
      static_cast<unsigned long long>(killed), static_cast<unsigned long long>(left),
      static_cast<unsigned long long>(all.lost), static_cast<unsigned long long>(all.given));
  EXPECT_GT(all.missed, 1000U);
  EXPECT_GT(all.past, 100U);
  EXPECT_GT(all.waiting, 100U);
  EXPECT_GT(dropped, 100U);
  EXPECT_GT(closed, 1000U);
  EXPECT_GT(killed, 1000U);
  EXPECT_GT(left, 1000U);
  EXPECT_GT(all.lost, 100U);
  EXPECT_GT(all.given, 20U);
}

}  // namespace
}  // namespace gradwire::sim

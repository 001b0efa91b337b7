// Thousands of whole sessions, each from a seed. GRADWIRE_SIM_SEED=N runs one and prints its trace;
// GRADWIRE_SIM_SEEDS=N runs that many.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "gtest/gtest.h"
#include "tests/sim/environment.h"
#include "tests/sim/simulation.h"

namespace gradwire::sim {
namespace {

constexpr std::uint64_t kSeeds = 10'000;

// Each kind of event must have happened this often in kSeeds seeds.
constexpr std::uint64_t kLeastOfEach = 50;

void PrintTrace(std::uint64_t seed) {
  const Outcome outcome = RunSeed(seed, true);
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
              Describe(MakeScenario(seed)).c_str());
  for (const std::string& line : outcome.trace) std::printf("%s\n", line.c_str());
  std::printf("%s\nreproduce with GRADWIRE_SIM_SEED=%llu\n",
              outcome.violation.empty() ? "no violation" : outcome.violation.c_str(),
              static_cast<unsigned long long>(seed));
}

TEST(Simulation, KeepsItsPromisesOnEverySeed) {
  if (std::getenv("GRADWIRE_SIM_SEED") != nullptr) {
    const std::uint64_t seed = FromEnvironment("GRADWIRE_SIM_SEED", 0);
    PrintTrace(seed);
    EXPECT_EQ(RunSeed(seed).violation, "");
    return;
  }
  const std::uint64_t seeds = FromEnvironment("GRADWIRE_SIM_SEEDS", kSeeds);
  const auto began = std::chrono::steady_clock::now();
  Counts counts{};
  std::uint64_t violations = 0;
  std::uint64_t fingerprint = 0;  // of all that happened: a change of form alone leaves it as it is
  for (std::uint64_t seed = 0; seed < seeds && violations < 3; ++seed) {
    const Outcome outcome = RunSeed(seed);
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += outcome.counts[i];
    fingerprint = Mix(fingerprint, outcome.hash);
    if (outcome.violation.empty()) continue;
    ++violations;
    ADD_FAILURE() << "seed " << seed << ": " << outcome.violation;
    PrintTrace(seed);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("%llu seeds in %.1f s, fingerprint %016llx\n", static_cast<unsigned long long>(seeds),
              took.count(), static_cast<unsigned long long>(fingerprint));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::string name = Name(static_cast<Count>(i));
    std::printf("  %-32s %llu\n", name.c_str(), static_cast<unsigned long long>(counts[i]));
    if (seeds < kSeeds || violations > 0) continue;
    EXPECT_GE(counts[i], kLeastOfEach) << name;
  }
}

TEST(Simulation, IsDeterministic) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Outcome first = RunSeed(seed);
    const Outcome second = RunSeed(seed);
    ASSERT_EQ(first.hash, second.hash) << "seed " << seed;
    ASSERT_EQ(first.counts, second.counts) << "seed " << seed;
  }
}

}  // namespace
}  // namespace gradwire::sim

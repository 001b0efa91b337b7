// A session that is saved, ended and continued elsewhere gives the bits of one that never stopped.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/saved_training.h"

namespace gradwire::testing {
namespace {

constexpr int kHalf = 30;
constexpr int kSteps = 60;

struct Case {
  std::string name;
  std::string hook;
  int world_size;
};

std::vector<Case> Cases() {
  const std::string batched = "batched_" + kPowerSgd;
  std::vector<Case> cases;
  for (int n : {2, 3}) {
    const auto add = [&](const std::string& name, const std::string& hook) {
      cases.push_back({absl::StrCat(name, "_", n), hook, n});
    };
    add("aggregate", kPowerSgd + ",error_feedback=aggregate");
    add("local", kPowerSgd + ",error_feedback=local");
    add("cold_aggregate", kPowerSgd + ",warm_start=false,error_feedback=aggregate");
    add("cold_local", kPowerSgd + ",warm_start=false,error_feedback=local");
    add("one_round", kPowerSgd + ",rounds=1");
    add("one_round_local", kPowerSgd + ",rounds=1,error_feedback=local");
    add("batched", batched);
    add("batched_cold_local", batched + ",warm_start=false,error_feedback=local");
  }
  cases.push_back({"wrapped_2", kPowerSgd + ",comm_wrapper=fp16", 2});
  cases.push_back({"batched_one_round_3", batched + ",rounds=1", 3});
  cases.push_back({"saved_before_compression_2",
                   "power_sgd,start_powerSGD_iter=35,matrix_approximation_rank=2", 2});
  return cases;
}

class SavedSession : public ::testing::TestWithParam<Case> {};

TEST_P(SavedSession, ASavedSessionGoesOnWithTheSameBits) {
  Training training{.hook = GetParam().hook, .world_size = GetParam().world_size};
  training.steps = Range(0, kSteps);
  const Trained whole = Train(training);
  if (HasFailure()) return;
  training.steps = Range(0, kHalf);
  const Trained first = Train(training);
  if (HasFailure()) return;
  training.from = &first.checkpoint;
  training.steps = Range(kHalf, kSteps);
  const Trained second = Train(training);
  if (HasFailure()) return;
  ExpectSameResults(whole.results, second.results, kHalf);
  ExpectSameCheckpoint(whole.checkpoint, second.checkpoint);
}

TEST_P(SavedSession, ASkippedStepLeavesNoTrace) {
  constexpr int kSkipped = 41;
  Training training{.hook = GetParam().hook, .world_size = GetParam().world_size};
  training.steps = Range(36, 47);
  training.poisoned = kSkipped;
  Trained skipping = Train(training);
  if (HasFailure()) return;
  for (auto& results : skipping.results) {
    results.erase(results.begin() + (kSkipped - training.steps.front()));
  }
  std::erase(training.steps, kSkipped);
  const Trained without = Train(training);
  if (HasFailure()) return;
  ExpectSameResults(without.results, skipping.results, 0);
  if (GetParam().name.starts_with("saved_before")) return;  // its state is empty
  ExpectSameCheckpoint(without.checkpoint, skipping.checkpoint);
}

// The cases above would show nothing if neither part of a checkpoint mattered.
TEST(StateTest, BothPartsOfACheckpointCount) {
  Training training{.steps = Range(0, 3)};
  const Trained first = Train(training);
  const Trained fresh = Train({});
  training.steps = Range(3, 4);
  training.from = &first.checkpoint;
  const Trained whole = Train(training);
  const Checkpoint no_state{.state = fresh.checkpoint.state, .dicts = first.checkpoint.dicts};
  training.from = &no_state;
  EXPECT_NE(Train(training).results, whole.results);
  const Checkpoint no_dicts{.state = first.checkpoint.state, .dicts = fresh.checkpoint.dicts};
  training.from = &no_dicts;
  EXPECT_NE(Train(training).results, whole.results);
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Hooks, SavedSession, ::testing::ValuesIn(Cases()), CaseName);

}  // namespace
}  // namespace gradwire::testing

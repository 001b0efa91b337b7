// What PowerSGD keeps from step to step, exports and takes back.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hooks/power_sgd_world.h"

namespace gradwire {
namespace {

using namespace ::gradwire::testing;  // NOLINT(google-build-using-namespace)

class PowerSgdState : public ::testing::TestWithParam<const char*> {};

TEST_P(PowerSgdState, SkippedAndFailedStepsLeaveNoTrace) {
  const auto undisturbed = World(2, Form(GetParam()));
  const auto disturbed = World(2, Form(GetParam()));
  const auto model = Model(DType::kFloat32);
  for (std::uint32_t step = 0; step < 12; ++step) {
    const Values values = RandomGradients(model, 2, step);
    auto expected = Pack<float>(values);
    ASSERT_TRUE(undisturbed->RunStep(expected, kOne).ok());
    if (step % 3 == 0) {
      Values poisoned = RandomGradients(model, 2, step + 1000);
      poisoned[0][step % model.size()].back() = std::numeric_limits<double>::infinity();
      auto gradients = Pack<float>(poisoned);
      const Snapshot before(*disturbed);
      CoordinatorHook& coordinator = disturbed->coordinator();
      const std::vector<std::uint32_t> part = {0, 2};
      ASSERT_TRUE(coordinator.Plan(part).ok());
      coordinator.SharedVersion(part);
      EXPECT_TRUE(before == Snapshot(*disturbed)) << "an export shows what an open step drew";
      coordinator.EndStep(Verdict::kSkip);
      // Other buckets with a first parameter that they had: the batched form's state is theirs.
      ASSERT_EQ(*disturbed->RunStep(gradients, {{0, 2}, {5, 1, 4, 3}}), Verdict::kSkip);
      EXPECT_TRUE(before == Snapshot(*disturbed));
      bool is_visible = false;
      for (std::size_t p = 0; p < model.size(); ++p) {
        EXPECT_EQ(gradients[0][p], gradients[1][p]);
        for (std::size_t i = 0; i < model[p].numel(); ++i) {
          is_visible |= !std::isfinite(At<float>(gradients[1][p], i));
        }
      }
      EXPECT_TRUE(is_visible) << "no member can see why the step was skipped";
      gradients = Pack<float>(RandomGradients(model, 2, step + 2000));
      ASSERT_EQ(*disturbed->RunStep(gradients, kOne, /*fails=*/true), Verdict::kSkip);
      EXPECT_TRUE(before == Snapshot(*disturbed));
    }
    auto gradients = Pack<float>(values);
    ASSERT_TRUE(disturbed->RunStep(gradients, kOne).ok());
    EXPECT_EQ(gradients, expected) << "step " << step;
  }
  EXPECT_TRUE(Snapshot(*undisturbed) == Snapshot(*disturbed));
}

TEST_P(PowerSgdState, GoesOnFromItsStateWithTheSameBits) {
  const auto model = Model(DType::kFloat32);
  const auto first = World(3, Form(GetParam()));
  for (std::uint32_t step = 0; step < 7; ++step) {
    auto gradients = Pack<float>(RandomGradients(model, 3, step));
    ASSERT_TRUE(first->RunStep(gradients, kTwo).ok());
  }
  const auto resumed = World(3, Form(GetParam()));
  const Snapshot saved(*first);
  ASSERT_TRUE(resumed->Import(saved.coordinator).ok());
  resumed->Reset();
  for (std::size_t r = 0; r < 3; ++r) {
    ASSERT_TRUE(resumed->hook(r).LoadState(saved.members[r], model).ok());
  }
  EXPECT_TRUE(saved == Snapshot(*resumed));
  for (std::uint32_t step = 7; step < 14; ++step) {
    auto expected = Pack<float>(RandomGradients(model, 3, step));
    auto gradients = expected;
    ASSERT_TRUE(first->RunStep(expected, kTwo).ok());
    ASSERT_TRUE(resumed->RunStep(gradients, kTwo).ok());
    EXPECT_EQ(gradients, expected) << "step " << step;
  }
  EXPECT_TRUE(Snapshot(*first) == Snapshot(*resumed));
}

INSTANTIATE_TEST_SUITE_P(All, PowerSgdState, kForms);

TEST(PowerSgd, TheBatchedFormKeepsFactorsOfTheLastBucketsOnly) {
  const auto world = World(2, "batched_power_sgd,start_powerSGD_iter=0");
  const std::vector<ParameterSpec> model = Model(DType::kFloat32);
  std::uint32_t step = 0;
  for (const Buckets& buckets : {kOne, kTwo, kShuffled, kTwo}) {
    auto gradients = Pack<float>(RandomGradients(model, 2, step++));
    ASSERT_EQ(*world->RunStep(gradients, buckets), Verdict::kApply);
    EXPECT_EQ(world->Export().tensors.size(), buckets.size());
    EXPECT_EQ(world->Report().size(), buckets.size());
  }
  // One that holds parts of both, and a step that is skipped: both are as before.
  const HookState before = world->Export();
  Values values = RandomGradients(model, 2, step);
  values[0][0][0] = std::numeric_limits<double>::quiet_NaN();
  auto gradients = Pack<float>(values);
  ASSERT_EQ(*world->RunStep(gradients, {{3, 2}, {1, 5}, {0, 4}}), Verdict::kSkip);
  EXPECT_TRUE(SameTensors(before, world->Export()));
}

TEST(PowerSgd, RefusesAnotherStateByName) {
  using ::testing::HasSubstr;
  const auto model = Model(DType::kFloat32);
  const auto world = World(2, "power_sgd,start_powerSGD_iter=0");
  auto gradients = Pack<float>(RandomGradients(model, 2, 1));
  ASSERT_TRUE(world->RunStep(gradients, kOne).ok());
  const HookState good = world->Export();
  const auto refusal = [&](const HookState& state) {
    const Snapshot before(*world);
    const absl::Status status = world->Import(state);
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(before == Snapshot(*world)) << "something was loaded";
    return std::string(status.message());
  };
  HookState bad = good;
  bad.metadata["format"] = "gradwire.session_state.2";
  EXPECT_THAT(refusal(bad), HasSubstr("gradwire.session_state.2"));
  bad = good;
  bad.metadata["layout"].replace(bad.metadata["layout"].find("tall"), 4, "long");
  EXPECT_THAT(refusal(bad), HasSubstr("long"));
  bad = good;
  bad.tensors.pop_back();
  EXPECT_THAT(refusal(bad), HasSubstr("missing"));
  bad = good;
  bad.tensors[0].data.resize(4);
  EXPECT_THAT(refusal(bad), HasSubstr("4 bytes"));
  bad = good;
  bad.metadata["generator"] = "1 2 3";
  EXPECT_THAT(refusal(bad), HasSubstr("generator"));
  bad = good;
  bad.metadata.erase("seed");
  EXPECT_THAT(refusal(bad), HasSubstr("seed"));
  const auto refused_by = [&good](const std::string& hook) {
    return std::string(World(2, hook)->Import(good).message());
  };
  EXPECT_EQ(refused_by("power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=2"),
            "state: saved with matrix_approximation_rank=1; the session has "
            "matrix_approximation_rank=2 [GW503]");
  EXPECT_EQ(
      refused_by("power_sgd,start_powerSGD_iter=0,error_feedback=local"),
      "state: saved with error_feedback=aggregate; the session has error_feedback=local [GW503]");
  EXPECT_EQ(refused_by("power_sgd,start_powerSGD_iter=0,use_error_feedback=false"),
            "state: saved with error_feedback=aggregate; the session has use_error_feedback=false "
            "[GW503]");
  EXPECT_EQ(refused_by("power_sgd,start_powerSGD_iter=0,warm_start=false"),
            "state: saved with warm_start=true; the session has warm_start=false [GW503]");
  EXPECT_EQ(
      refused_by("batched_power_sgd,start_powerSGD_iter=0"),
      "state: saved with comm_hook=power_sgd; the session has comm_hook=batched_power_sgd [GW503]");
  bad = good;
  bad.metadata["options"] += " a=1";
  EXPECT_EQ(refusal(bad), "state: saved with a=1; the session has no further option [GW503]");
  bad.metadata["options"] = std::string(1 << 20, ' ');
  EXPECT_EQ(refusal(bad),
            "state: saved with no further option; the session has comm_hook=power_sgd [GW503]");

  HookState padding = world->hook(0).State();
  padding.tensors[0] = {.name = "padding/tall",
                        .dtype = DType::kFloat16,
                        .shape = {3},
                        .data = std::vector<std::byte>(6)};
  EXPECT_THAT(std::string(world->hook(0).LoadState(padding, model).message()),
              HasSubstr("padding/tall"));
  padding.tensors[0].dtype = DType::kFloat32;
  EXPECT_THAT(std::string(world->hook(0).LoadState(padding, model).message()),
              HasSubstr("padding/tall"));

  HookState residuals = world->hook(0).State();
  residuals.tensors[0].name = "residual/none";
  EXPECT_THAT(std::string(world->hook(0).LoadState(residuals, model).message()),
              HasSubstr("residual/none"));
}

}  // namespace
}  // namespace gradwire

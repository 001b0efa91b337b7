// A coordinator that is lost at any moment: the next one has its state from the members.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "tests/hooks/power_sgd_world.h"

namespace gradwire {
namespace {

using namespace ::gradwire::testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

const DrawBuckets kDefaultPlan = {{0, 1, 2, 3, 4, 5}};

class PowerSgdCopy : public ::testing::TestWithParam<const char*> {};

// Which step averaged a factor is no part of the copy.
HookState WithoutVersions(HookState state) {
  std::erase_if(state.metadata,
                [](const auto& item) { return item.first.starts_with("version/"); });
  return state;
}

// Steps of changing buckets, some of which are skipped, some given up.
void RunStep(HookWorld& world, std::uint32_t step, std::vector<MemberGradients>& gradients) {
  Values values = RandomGradients(Model(DType::kFloat32), world.world_size(), step);
  const bool skips = step % 5 == 2;
  if (skips) values[0][0][0] = std::numeric_limits<double>::quiet_NaN();
  gradients = Pack<float>(values);
  const Buckets& buckets = step % 4 == 3 ? kTwo : kOne;
  ASSERT_EQ(*world.RunStep(gradients, buckets), skips ? Verdict::kSkip : Verdict::kApply);
  if (step % 6 != 4) return;
  auto lost = Pack<float>(RandomGradients(Model(DType::kFloat32), world.world_size(), step + 1000));
  ASSERT_EQ(*world.RunStep(lost, buckets, /*fails=*/true), Verdict::kSkip);
}

TEST_P(PowerSgdCopy, AFreshCoordinatorGoesOnWithTheSameBits) {
  for (std::uint32_t lost_after = 1; lost_after < 12; ++lost_after) {
    const auto undisturbed = World(2, Form(GetParam()));
    const auto disturbed = World(2, Form(GetParam()));
    for (std::uint32_t step = 0; step < 14; ++step) {
      std::vector<MemberGradients> expected;
      std::vector<MemberGradients> gradients;
      RunStep(*undisturbed, step, expected);
      RunStep(*disturbed, step, gradients);
      // Bytes, because a step that is skipped has a NaN.
      ASSERT_EQ(gradients, expected) << "step " << step << ", lost after " << lost_after;
      EXPECT_EQ(WriteSafetensors(disturbed->hook(0).Copy()),
                WriteSafetensors(disturbed->hook(1).Copy()));
      if (step + 1 != lost_after && step != lost_after) continue;  // twice in a row
      const HookState before = disturbed->Export();
      const absl::Status taken = disturbed->LoseCoordinator(step % 2);
      ASSERT_TRUE(taken.ok()) << taken;
      EXPECT_TRUE(SameTensors(WithoutVersions(before), WithoutVersions(disturbed->Export())))
          << "after step " << step;
    }
    EXPECT_TRUE(SameTensors(undisturbed->Export(), disturbed->Export()));
  }
}

// Its share went to another member, and came back with the next daemon: its residuals have waited.
TEST_P(PowerSgdCopy, WhoHasForgottenIsGivenTheFactorsAgain) {
  const auto undisturbed = World(2, Form(GetParam()));
  const auto disturbed = World(2, Form(GetParam()));
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : disturbed->manifest()) names.push_back(parameter.name);
  for (std::uint32_t step = 0; step < 14; ++step) {
    std::vector<MemberGradients> expected;
    std::vector<MemberGradients> gradients;
    RunStep(*undisturbed, step, expected);
    RunStep(*disturbed, step, gradients);
    ASSERT_EQ(gradients, expected) << "step " << step;
    if (step % 3 != 0) continue;
    const HookState before = disturbed->hook(1).State();
    disturbed->hook(1).Forget(std::vector<std::string>{"none"});
    EXPECT_EQ(WriteSafetensors(disturbed->hook(1).Copy()),
              WriteSafetensors(disturbed->hook(0).Copy()));
    disturbed->hook(1).Forget(names);
    EXPECT_TRUE(SameTensors(before, disturbed->hook(1).State()));
    EXPECT_EQ(disturbed->hook(1).Copy().tensors.size(), 0U) << "step " << step;
    ASSERT_TRUE(disturbed->LoseCoordinator(0).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(All, PowerSgdCopy, kForms);

TEST(PowerSgd, ACopyHasTheDrawPlan) {
  const DrawBuckets plan = {{5, 3}, {1, 0}};
  const auto undisturbed = World(2, "power_sgd,start_powerSGD_iter=2");
  const auto disturbed = World(2, "power_sgd,start_powerSGD_iter=2");
  for (auto* world : {undisturbed.get(), disturbed.get()}) {
    ASSERT_TRUE(world->coordinator().SetDrawPlan(plan).ok());
  }
  for (std::uint32_t step = 0; step < 5; ++step) {
    auto expected = Pack<float>(RandomGradients(Model(DType::kFloat32), 2, step));
    auto gradients = expected;
    ASSERT_TRUE(undisturbed->RunStep(expected, kOne).ok());
    ASSERT_TRUE(disturbed->RunStep(gradients, kOne).ok());
    ASSERT_EQ(gradients, expected) << "step " << step;
    ASSERT_TRUE(disturbed->LoseCoordinator(0).ok());
    EXPECT_EQ(disturbed->coordinator().SetDrawPlan(kDefaultPlan).ok(), step < 2);
    if (step >= 2) continue;
    ASSERT_TRUE(disturbed->coordinator().SetDrawPlan(plan).ok());
  }
}

// A bucket with the same first parameter as another one. Its step is dropped, and the other members
// have not begun it.
void BeginAlone(HookWorld& world, std::size_t rank, const std::vector<std::uint32_t>& positions) {
  std::vector<ParameterSpec> parameters;
  std::size_t numel = 0;
  for (const std::uint32_t p : positions) {
    parameters.push_back(world.manifest()[p]);
    numel += parameters.back().numel();
  }
  std::vector<float> gradients(numel, 1);
  const TensorView view{DType::kFloat32, gradients.data(), numel};
  auto bucket = GradBucket::Make(0, view, parameters);
  ASSERT_TRUE(world.coordinator().Plan(positions).ok());
  auto run = world.hook(rank).Start(*bucket, 2);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE((*run)->Next({.world_size = 2, .rank = static_cast<int>(rank)}).ok());
  ASSERT_GT(world.coordinator().SharedVersion(positions), 0U);
  const auto state = world.coordinator().SharedState(positions);
  state->Run();
  ASSERT_TRUE((*run)->Import(state->TakeBytes()).ok());
  (*run)->Abort();
  run->reset();
  world.hook(rank).EndStep(Verdict::kSkip);
}

TEST(PowerSgd, ABucketThatOneMemberBeganLeavesTheFactorsOfTheOthers) {
  const std::string spec = "batched_power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=2";
  const auto undisturbed = World(2, spec);
  const auto disturbed = World(2, spec);
  for (std::uint32_t step = 0; step < 6; ++step) {
    auto expected = Pack<float>(RandomGradients(Model(DType::kFloat32), 2, step));
    auto gradients = expected;
    const Buckets buckets = step < 4 ? kOne : Buckets{{0, 2}, {1, 3, 4, 5}};
    ASSERT_TRUE(undisturbed->RunStep(expected, buckets).ok());
    ASSERT_TRUE(disturbed->RunStep(gradients, buckets).ok());
    ASSERT_EQ(gradients, expected) << "step " << step;
    if (step != 1 && step != 2) continue;
    const auto before = WriteSafetensors(disturbed->hook(1).Copy());
    BeginAlone(*disturbed, 1, {0, 2});
    EXPECT_EQ(WriteSafetensors(disturbed->hook(1).Copy()), before);
    EXPECT_EQ(WriteSafetensors(disturbed->hook(0).Copy()), before);
    ASSERT_TRUE(disturbed->LoseCoordinator(1).ok());
  }
}

// A parameter that no step has had since the file was read is with nobody.
TEST(PowerSgd, ACopyAfterAFileLacksWhatNoStepHad) {
  const auto world = World(2, "power_sgd,start_powerSGD_iter=0");
  auto gradients = Pack<float>(RandomGradients(Model(DType::kFloat32), 2, 1));
  ASSERT_TRUE(world->RunStep(gradients, kOne).ok());
  ASSERT_TRUE(world->Import(world->Export()).ok());
  world->Reset();
  ASSERT_TRUE(world->RunStep(gradients, {{1}, {0}}).ok());
  EXPECT_THAT(std::string(world->LoseCoordinator(0).message()),
              HasSubstr("state: has factors of 2 parameters; the session compresses 4"));
  ASSERT_TRUE(world->RunStep(gradients, {{3}, {5}}).ok());
  EXPECT_TRUE(world->LoseCoordinator(0).ok());
}

// Members hold at a shard what it has, and others have the rest.
TEST(PowerSgd, AShardsCopyAfterAFileNeedsItsOwnFactorsOnly) {
  const auto world = World(2, "power_sgd,start_powerSGD_iter=0");
  auto gradients = Pack<float>(RandomGradients(Model(DType::kFloat32), 2, 1));
  ASSERT_TRUE(world->RunStep(gradients, kOne).ok());
  ASSERT_TRUE(world->Import(world->Export()).ok());
  world->Reset();
  ASSERT_TRUE(world->RunStep(gradients, {{1}, {0}}).ok());
  HookState copy = world->hook(0).Copy();
  copy.metadata.merge(world->coordinator().OwnState().metadata);
  const auto read = [&](std::uint32_t owned) {
    return world->coordinator().ReadCopy(copy, [owned](std::uint32_t p) { return p < owned; });
  };
  EXPECT_TRUE(read(2).ok()) << read(2).status();
  EXPECT_THAT(std::string(read(4).status().message()), HasSubstr("state: has factors of 2"));
}

TEST(PowerSgd, RefusesABadCopyByName) {
  const auto world = World(2, "batched_power_sgd,start_powerSGD_iter=0");
  auto gradients = Pack<float>(RandomGradients(Model(DType::kFloat32), 2, 1));
  ASSERT_TRUE(world->RunStep(gradients, kOne).ok());
  const HookState good = world->hook(0).Copy();
  const auto refusal = [&](const HookState& copy) {
    return std::string(world->coordinator().ReadCopy(copy, {}).status().message());
  };
  HookState bad = good;
  bad.metadata["bucket/conv"] = "conv\nother";
  EXPECT_THAT(refusal(bad),
              HasSubstr("\"bucket/conv\" has no parameter of this session: \"other\""));
  bad = good;
  bad.metadata["iteration"] = "-1";
  EXPECT_THAT(refusal(bad), HasSubstr("iteration"));
  bad = good;
  bad.metadata["generator"] = "none";
  EXPECT_THAT(refusal(bad), HasSubstr("generator"));
  bad = good;
  bad.tensors.front().data.pop_back();
  EXPECT_THAT(refusal(bad), HasSubstr("allowed:"));
}

}  // namespace
}  // namespace gradwire

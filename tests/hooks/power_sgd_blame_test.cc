// Which parameter a value of a contribution comes from.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hooks/device_hooks.h"
#include "tests/hooks/power_sgd_world.h"

namespace gradwire {
namespace {

using namespace ::gradwire::testing;  // NOLINT(google-build-using-namespace)

const std::vector<std::uint32_t> kBucket = {5, 2, 3, 0, 1, 4};

// One member's contribution to the first round of a step, whose gradient has one NaN.
class Contribution {
 public:
  Contribution(Hook& hook, CoordinatorHook& coordinator, std::uint32_t spoiled) {
    const std::vector<ParameterSpec> model = Model(DType::kFloat32);
    std::vector<ParameterSpec> parameters;
    for (const std::uint32_t p : kBucket) {
      if (p == spoiled) at_ = values_.size();
      values_.resize(values_.size() + model[p].numel(), 1.0F);
      parameters.push_back(model[p]);
    }
    values_[at_] = std::numeric_limits<float>::quiet_NaN();
    GradBucket bucket =
        *GradBucket::Make(0, {DType::kFloat32, values_.data(), values_.size()}, parameters);
    const auto run = *hook.Start(bucket, 0);
    const RoundPlan plan = **run->Next({.world_size = 2});
    EXPECT_TRUE(coordinator.Plan(kBucket).ok());
    if (coordinator.SharedVersion(kBucket) != 0) {
      const auto work = coordinator.SharedState(kBucket);
      work->Run();
      EXPECT_TRUE(run->Import(work->TakeBytes()).ok());
    }
    for (std::size_t s = 0; s < plan.segments.size(); ++s) {
      std::vector<float> out(plan.segments[s].numel);
      const ElementRange range{.segment = s, .begin = 0, .end = out.size()};
      EXPECT_TRUE(run->Encode(range, std::as_writable_bytes(std::span(out))).ok());
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (!std::isfinite(out[i])) spoiled_.emplace_back(s, i);
      }
    }
    run->Abort();
  }

  // Segment and element of each value that is not finite.
  const std::vector<std::pair<std::size_t, std::size_t>>& spoiled() const { return spoiled_; }

 private:
  std::size_t at_ = 0;
  std::vector<float> values_;
  std::vector<std::pair<std::size_t, std::size_t>> spoiled_;
};

TEST(PowerSgdBlame, EachValueOfAContributionIsAParameters) {
  for (const char* form :
       {"power_sgd,start_powerSGD_iter=0", "power_sgd,start_powerSGD_iter=0,rounds=1"}) {
    const HookSpec spec = *HookSpec::Parse(form);
    const auto hook = *MakeHook(spec, MakeHostDevice());
    const auto coordinator = *MakeCoordinatorHook(spec, Model(DType::kFloat32));
    for (int step = 0; step < 2; ++step) {  // with one round: P, then Q
      for (const std::uint32_t spoiled : kBucket) {
        const Contribution contribution(*hook, *coordinator, spoiled);
        EXPECT_FALSE(contribution.spoiled().empty());
        for (const auto& [segment, element] : contribution.spoiled()) {
          EXPECT_EQ(coordinator->ParameterAt(kBucket, 0, segment, element), spoiled)
              << form << ", step " << step << ", segment " << segment << ", element " << element;
        }
        coordinator->EndStep(Verdict::kSkip);
        hook->EndStep(Verdict::kSkip);
      }
      coordinator->EndStep(Verdict::kApply);
      hook->EndStep(Verdict::kApply);
    }
  }
}

TEST(PowerSgdBlame, WhereSeveralHaveAPartNobodyIsNamed) {
  const auto batched = *MakeCoordinatorHook(
      *HookSpec::Parse("batched_power_sgd,start_powerSGD_iter=0"), Model(DType::kFloat32));
  ASSERT_TRUE(batched->Plan(kBucket).ok());
  EXPECT_EQ(batched->ParameterAt(kBucket, 0, 0, 0), std::nullopt);
  const auto plain = *MakeCoordinatorHook(*HookSpec::Parse("fp16"), Model(DType::kFloat32));
  EXPECT_EQ(plain->ParameterAt(kBucket, 0, 0, 0), std::nullopt);
}

}  // namespace
}  // namespace gradwire

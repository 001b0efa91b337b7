// The order in which the first factors are drawn: a seed for each bucket of the plan, whatever the
// buckets of the step are, in exported state as well.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/power_sgd/layout.h"
#include "hooks/power_sgd/options.h"
#include "hooks/power_sgd/torch_random.h"
#include "tests/hooks/power_sgd_world.h"

namespace gradwire {
namespace {

using namespace ::gradwire::testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

const std::string kSpec = "power_sgd,start_powerSGD_iter=1,matrix_approximation_rank=2";
// Bucket 1 has nothing to compress, and takes a seed all the same. "conv" is left out.
const DrawBuckets kPlan = {{3, 5}, {2}, {4, 1}};

void RunSteps(HookWorld& world, std::uint32_t from, std::uint32_t to, const Buckets& buckets) {
  for (std::uint32_t step = from; step < to; ++step) {
    auto gradients = Pack<float>(RandomGradients(world.manifest(), 2, step));
    ASSERT_TRUE(world.RunStep(gradients, buckets).ok());
  }
}

// The first Q of the bucket's parameters as members get it.
std::vector<float> FirstQ(CoordinatorHook& hook, const std::vector<std::uint32_t>& bucket) {
  EXPECT_TRUE(hook.Plan(bucket).ok());
  EXPECT_NE(hook.SharedVersion(bucket), 0U);
  const auto work = hook.SharedState(bucket);
  work->Run();
  const std::vector<std::byte> bytes = work->TakeBytes();
  std::vector<float> values(bytes.size() / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(At<float>(bytes, i));
  return values;
}

// torch: the state's generator gives a seed for each bucket, and that one its Q's in their order.
std::vector<float> Torchs(const std::vector<std::vector<std::size_t>>& numels, std::size_t bucket) {
  NumpyRandomState seeds(0);
  std::uint32_t seed = 0;
  for (std::size_t b = 0; b <= bucket; ++b) seed = seeds.NextSeed();
  TorchGenerator normals(seed);
  std::vector<float> all;
  for (const std::size_t numel : numels[bucket]) {
    std::vector<float> one(numel);
    normals.Normal(one);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

TEST(DrawPlan, EachBucketHasASeedOfItsOwn) {
  // m x rank of same and wide; of nothing; of tall; and of conv, which is left out.
  const std::vector<std::vector<std::size_t>> numels = {{12, 180}, {}, {12}, {72}};
  const auto world = World(2, kSpec);
  ASSERT_TRUE(world->coordinator().SetDrawPlan(kPlan).ok());
  RunSteps(*world, 0, 1, kTwo);
  EXPECT_EQ(FirstQ(world->coordinator(), {3, 5}), Torchs(numels, 0));
  EXPECT_EQ(FirstQ(world->coordinator(), {1}), Torchs(numels, 2));
  EXPECT_EQ(FirstQ(world->coordinator(), {0}), Torchs(numels, 3));
}

TEST(DrawPlan, TheWholeModelIsTheDefault) {
  const auto planned = World(2, kSpec);
  const auto world = World(2, kSpec);
  ASSERT_TRUE(planned->coordinator().SetDrawPlan({{0, 1, 2, 3, 4, 5}}).ok());
  for (HookWorld* one : {planned.get(), world.get()}) RunSteps(*one, 0, 3, kTwo);
  EXPECT_TRUE(Snapshot(*planned) == Snapshot(*world));
  EXPECT_FALSE(world->Export().metadata.contains("draw_plan"));
}

class DrawPlanForms : public ::testing::TestWithParam<const char*> {};

// Batched factors belong to their buckets.
TEST_P(DrawPlanForms, BucketsOfStepsHaveNoPart) {
  const bool batched = std::string(GetParam()).starts_with("batched");
  const auto planned = World(2, Form(GetParam()));
  const auto other = World(2, Form(GetParam()));
  const auto without = World(2, Form(GetParam()));
  for (HookWorld* world : {planned.get(), other.get()}) {
    ASSERT_TRUE(world->coordinator().SetDrawPlan({{5, 4, 3}, {2, 1, 0}}).ok());
  }
  RunSteps(*planned, 0, 6, kTwo);
  RunSteps(*without, 0, 6, kTwo);
  RunSteps(*other, 0, 3, batched ? Buckets{kTwo[1], kTwo[0]} : kOne);
  RunSteps(*other, 3, 6, batched ? kTwo : kShuffled);
  EXPECT_TRUE(SameTensors(planned->Export(), other->Export()));
  EXPECT_FALSE(SameTensors(planned->Export(), without->Export()));
}

// Saved before the first draw, in the middle, and taken by a new session that has another plan.
TEST_P(DrawPlanForms, IsPartOfTheState) {
  for (const std::uint32_t saved_after : {1U, 2U, 4U}) {
    const auto first = World(2, Form(GetParam()));
    const auto resumed = World(2, Form(GetParam()));
    ASSERT_TRUE(first->coordinator().SetDrawPlan(kPlan).ok());
    ASSERT_TRUE(resumed->coordinator().SetDrawPlan({{1, 2}, {0}}).ok());
    RunSteps(*first, 0, saved_after, kTwo);
    const Snapshot saved(*first);
    ASSERT_TRUE(resumed->Import(saved.coordinator).ok());
    resumed->Reset();
    for (std::size_t r = 0; r < 2; ++r) {
      ASSERT_TRUE(resumed->hook(r).LoadState(saved.members[r], resumed->manifest()).ok());
    }
    EXPECT_TRUE(saved == Snapshot(*resumed));
    // What has drawn keeps its plan, and what has not may get another one.
    EXPECT_EQ(resumed->coordinator().SetDrawPlan(kPlan).ok(), saved_after <= 2);
    RunSteps(*first, saved_after, 7, kTwo);
    RunSteps(*resumed, saved_after, 7, kTwo);
    EXPECT_TRUE(Snapshot(*first) == Snapshot(*resumed)) << saved_after;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DrawPlanForms, kForms);

TEST(DrawPlan, IsFixedByTheFirstStepThatCompresses) {
  const auto world = World(2, kSpec);
  CoordinatorHook& hook = world->coordinator();
  hook.FixDrawPlan();  // nothing is drawn in this step
  ASSERT_TRUE(hook.SetDrawPlan(kPlan).ok());
  RunSteps(*world, 0, 1, kTwo);
  const std::vector<std::uint32_t> bucket = {1};
  ASSERT_TRUE(hook.Plan(bucket).ok());
  EXPECT_TRUE(hook.AwaitsDrawPlan(bucket));
  ASSERT_TRUE(hook.Plan(std::vector<std::uint32_t>{2}).ok());
  EXPECT_FALSE(hook.AwaitsDrawPlan(std::vector<std::uint32_t>{2})) << "it has no factors";
  hook.FixDrawPlan();
  EXPECT_FALSE(hook.AwaitsDrawPlan(bucket));
  const absl::Status late = hook.SetDrawPlan(kPlan);
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(late.message()),
              HasSubstr("at iteration 1 and after the first draw; allowed: before"));
  hook.EndStep(Verdict::kSkip);
  EXPECT_EQ(hook.SetDrawPlan(kPlan), late) << "whether before or after the end is chance";
}

TEST(DrawPlan, RefusesByNameAndChangesNothing) {
  const auto world = World(2, kSpec);
  const HookState before = world->Export();
  const std::vector<std::pair<DrawBuckets, std::string>> cases = {
      {{}, "draw plan: has 0 entries; allowed: 1 to 6"},
      {{{0}, {}}, "draw plan's bucket 1: has 0 entries; allowed: 1 to 6"},
      {{{0, 6}}, "draw plan's bucket 0: parameter 6; allowed: below 6"},
      {{{0}, {1, 0}},
       "draw plan's bucket 1: parameter 0 for the second time; allowed: each at most"}};
  for (const auto& [plan, message] : cases) {
    const absl::Status status = world->coordinator().SetDrawPlan(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  EXPECT_TRUE(SameTensors(world->Export(), before));
}

TEST(DrawPlan, DamagedStatesAreRefused) {
  const auto world = World(2, kSpec);
  ASSERT_TRUE(world->coordinator().SetDrawPlan(kPlan).ok());
  RunSteps(*world, 0, 2, kTwo);
  const HookState good = world->Export();
  EXPECT_EQ(good.metadata.at("draw_plan"), "3 5,2,4 1");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"draw_plan", ""},    {"draw_plan", "3 5,,4 1"},
      {"draw_plan", "3 x"}, {"draw_plan", "3 5,2,4 6"},
      {"draw_plan", "3 3"}, {"draw_plan", "3 5"},
      {"draw_plan", "-1"},  {"draw_plan", "0,1,2,3,4,5,0"},
      {"seeds", "1 2 3"},   {"seeds", "x"}};
  for (const auto& [key, value] : cases) {
    HookState bad = good;
    bad.metadata[key] = value;
    EXPECT_EQ(world->Import(bad).code(), absl::StatusCode::kInvalidArgument) << key << value;
  }
  EXPECT_TRUE(world->Import(good).ok());
}

TEST(DrawPlan, OtherHooksTakeAny) {
  EXPECT_TRUE(World(2, "no")->coordinator().SetDrawPlan(kPlan).ok());
}

}  // namespace
}  // namespace gradwire

// The coordinator's half of PowerSGD: what it hands out is that moment's state, whatever happens to
// the hook meanwhile and on whatever thread it is computed; and its state does not depend on the
// buckets that brought it.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "tests/hooks/power_sgd_world.h"

namespace gradwire {
namespace {

using namespace ::gradwire::testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

std::vector<std::uint32_t> Positions(const std::vector<std::size_t>& bucket) {
  return {bucket.begin(), bucket.end()};
}

std::string FileOf(HookWorld& world) { return WriteSafetensors(world.Export()); }

TEST(Coordinator, RefusesAStateWhereItKeepsNone) {
  for (const char* spec : {"no", "fp16", "noop", "bf16,comm_wrapper=fp16"}) {
    const auto world = World(2, spec);
    const absl::Status status = world->coordinator().Snapshot()->State().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << spec;
    EXPECT_EQ(world->Import({}), status);
    EXPECT_TRUE(world->Report().empty());
    EXPECT_EQ(world->coordinator().SharedState(Positions({0})), nullptr);
    EXPECT_EQ(world->coordinator().TakeChore(), nullptr);
  }
}

class CoordinatorForms : public ::testing::TestWithParam<const char*> {};

// Snapshots of every step, computed at the end and on other threads, after an import of an earlier
// one has replaced the hook's state, too.
TEST_P(CoordinatorForms, SnapshotsKeepTheirMoment) {
  const auto world = World(2, Form(GetParam()));
  std::vector<std::shared_ptr<const HookSnapshot>> snapshots;
  std::vector<std::string> files;
  const Buckets* const layouts[] = {&kOne, &kTwo, &kShuffled};
  for (std::uint32_t step = 0; step < 9; ++step) {
    auto gradients = Pack<float>(RandomGradients(Model(DType::kFloat32), 2, step));
    ASSERT_TRUE(world->RunStep(gradients, *layouts[step / 2 % 3]).ok());
    snapshots.push_back(world->coordinator().Snapshot());
    files.push_back(FileOf(*world));
    if (step != 5) continue;
    ASSERT_TRUE(world->Import(*snapshots[3]->State()).ok());
    world->Reset();
  }
  std::vector<std::string> later(files.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < later.size(); ++i) {
    threads.emplace_back([&, i] { later[i] = WriteSafetensors(*snapshots[i]->State()); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(later, files);
  EXPECT_EQ(files[6] == files[5], false) << "the step after the import changed nothing";
}

// Several threads ask for parts of the same draw, while the step it was made for is over already.
TEST_P(CoordinatorForms, SharedStateIsComputedOnAnyThread) {
  const auto inline_world = World(2, Form(GetParam()));
  const auto world = World(2, Form(GetParam()));
  CoordinatorHook& hook = world->coordinator();
  CoordinatorHook& inline_hook = inline_world->coordinator();
  for (int step = 0; step < 2; ++step) {  // not compressed yet
    hook.EndStep(Verdict::kApply);
    inline_hook.EndStep(Verdict::kApply);
  }
  std::vector<std::shared_ptr<SharedStateWork>> works;
  std::vector<std::vector<std::byte>> expected;
  for (const auto& bucket : kShuffled) {
    for (CoordinatorHook* one : {&inline_hook, &hook}) {
      ASSERT_TRUE(one->Plan(Positions(bucket)).ok());
      const bool has_state = one->SharedVersion(Positions(bucket)) != 0;
      const auto work = one->SharedState(Positions(bucket));
      ASSERT_EQ(work != nullptr, has_state);
      if (work == nullptr) continue;
      if (one == &hook) {
        works.push_back(work);
        continue;
      }
      work->Run();
      expected.push_back(work->TakeBytes());
    }
  }
  ASSERT_GE(works.size(), 2U);
  std::vector<std::thread> threads;
  for (const auto& work : works) threads.emplace_back([&work] { work->Run(); });
  hook.EndStep(Verdict::kSkip);
  for (const auto& bucket : kTwo) {
    EXPECT_TRUE(hook.Plan(Positions(bucket)).ok());
    hook.SharedVersion(Positions(bucket));
  }
  hook.EndStep(Verdict::kSkip);
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < works.size(); ++i) {
    EXPECT_EQ(works[i]->TakeBytes(), expected[i]) << "bucket " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CoordinatorForms, kForms);

// Some parameters miss some steps, and the others come in ever new buckets: results and states are
// those of buckets of one parameter each.
TEST(Coordinator, FactorsOutliveTheBucketsThatBroughtThem) {
  const auto model = Model(DType::kFloat32);
  for (const char* options : {"", ",rounds=1", ",warm_start=false"}) {
    const std::string spec =
        std::string("power_sgd,start_powerSGD_iter=1,matrix_approximation_rank=2") + options;
    const auto single = World(2, spec);
    const auto changing = World(2, spec);
    std::mt19937 random(7);
    for (std::uint32_t step = 0; step < 60; ++step) {
      std::vector<std::size_t> order(model.size());
      for (std::size_t p = 0; p < order.size(); ++p) order[p] = p;
      std::shuffle(order.begin(), order.end(), random);
      order.resize(1 + random() % order.size());
      Buckets ones;
      Buckets buckets(1);
      for (const std::size_t p : order) {
        ones.push_back({p});
        if (!buckets.back().empty() && random() % 3 == 0) buckets.emplace_back();
        buckets.back().push_back(p);
      }
      auto expected = Pack<float>(RandomGradients(model, 2, step));
      auto gradients = expected;
      const bool fails = step % 7 == 3;
      ASSERT_TRUE(single->RunStep(expected, ones, fails).ok());
      ASSERT_TRUE(changing->RunStep(gradients, buckets, fails).ok());
      ASSERT_EQ(gradients, expected) << spec << " step " << step;
      ASSERT_EQ(FileOf(*changing), FileOf(*single)) << spec << " step " << step;
    }
  }
}

// Files that the daemon wrote when factors were kept one by one: nine steps in changing buckets.
TEST(Coordinator, TakesFilesOfBefore) {
  for (const auto& [name, spec] :
       {std::pair("power_sgd", "power_sgd"), std::pair("power_sgd_rounds_1", "power_sgd,rounds=1"),
        std::pair("batched_power_sgd", "batched_power_sgd")}) {
    std::ifstream in(std::string(GRADWIRE_OLD_STATES) + "/" + name + ".safetensors",
                     std::ios::binary);
    const std::string file{std::istreambuf_iterator<char>(in), {}};
    const auto state = ReadSafetensors(file);
    ASSERT_TRUE(state.ok()) << name << ": " << state.status();
    const auto world = World(2, Form(spec));
    const absl::Status imported = world->Import(*state);
    ASSERT_TRUE(imported.ok()) << imported;
    EXPECT_EQ(FileOf(*world), file) << name;
    CoordinatorHook& hook = world->coordinator();
    std::size_t compared = 0;
    for (const auto& bucket : kTwo) {  // the last applied step's
      ASSERT_TRUE(hook.Plan(Positions(bucket)).ok());
      if (hook.SharedVersion(Positions(bucket)) == 0) continue;
      const auto work = hook.SharedState(Positions(bucket));
      work->Run();
      std::vector<std::byte> expected;
      for (const std::size_t p : bucket) {
        for (const StateTensor& tensor : state->tensors) {
          if (tensor.name.substr(2) != world->manifest()[p].name) continue;
          if (tensor.name.starts_with("q/")) {
            expected.insert(expected.end(), tensor.data.begin(), tensor.data.end());
          }
        }
      }
      const std::vector<std::byte> bytes = work->TakeBytes();
      if (std::string(spec).find("rounds=1") == std::string::npos) {
        EXPECT_EQ(bytes, expected);
      } else {
        EXPECT_GT(bytes.size(), expected.size());
      }
      ++compared;
    }
    EXPECT_GE(compared, 2U);
    world->Reset();
    hook.EndStep(Verdict::kSkip);
    auto gradients = Pack<float>(RandomGradients(world->manifest(), 2, 1));
    EXPECT_EQ(*world->RunStep(gradients, kTwo), Verdict::kApply);
  }
}

TEST(Coordinator, RefusesAParameterInTwoBuckets) {
  const auto world = World(2, "batched_power_sgd,start_powerSGD_iter=0");
  auto gradients = Pack<float>(RandomGradients(world->manifest(), 2, 1));
  ASSERT_TRUE(world->RunStep(gradients, kTwo).ok());
  HookState state = world->Export();
  ASSERT_EQ(state.metadata.at("bucket/bias"), "2 1 0");
  state.metadata["bucket/bias"] = "2 1 5";  // of the other bucket
  const absl::Status status = world->Import(state);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is no bucket"));
}

}  // namespace
}  // namespace gradwire

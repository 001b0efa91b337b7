// What a coordinator's hook does under the session's lock does not grow with the number of
// parameters: it is counted in allocations and their bytes, of a model of 100,000 parameters and of
// one of a hundred, in equally many buckets.
#include <malloc.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "hooks/coordinator_hook.h"

namespace {
std::size_t calls = 0;
std::size_t taken = 0;
std::size_t freed = 0;  // calls
std::size_t held = 0;   // bytes

void* Allocate(std::size_t bytes) {
  ++calls;
  taken += bytes;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  held += malloc_usable_size(memory);
  return memory;
}

void Free(void* memory) {
  freed += memory == nullptr ? 0 : 1;
  held -= malloc_usable_size(memory);
  std::free(memory);
}
}  // namespace

void* operator new(std::size_t bytes) { return Allocate(bytes); }
void* operator new[](std::size_t bytes) { return Allocate(bytes); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, std::size_t) noexcept { Free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { Free(memory); }

namespace gradwire {
namespace {

constexpr std::size_t kBuckets = 10;

struct Cost {
  std::size_t calls = 0;
  std::size_t bytes = 0;
  std::size_t frees = 0;
  bool operator==(const Cost&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Cost& cost) {
  return out << cost.calls << " allocations of " << cost.bytes << " bytes, " << cost.frees
             << " frees";
}

template <class Call>
Cost CostOf(Call call) {
  const Cost before{calls, taken, freed};
  call();
  return {calls - before.calls, taken - before.bytes, freed - before.frees};
}

struct StepCosts {
  std::vector<Cost> version;  // by bucket, as are
  std::vector<Cost> shared_state;
  Cost end_step;
  Cost snapshot;
};

void Observe(CoordinatorHook& hook, BucketPositions bucket, const std::vector<RoundPlan>& plans) {
  for (std::uint32_t round = 0; round < plans.size(); ++round) {
    for (std::size_t s = 0; s < plans[round].segments.size(); ++s) {
      const Segment& segment = plans[round].segments[s];
      if (!hook.Observes(round, segment)) continue;
      const std::vector<std::byte> result(segment.bytes());
      hook.Observe(bucket, round, {.segment = s, .begin = 0, .end = segment.numel}, result);
    }
  }
}

class Coordinator {
 public:
  Coordinator(const std::string& spec, std::size_t parameters) {
    std::vector<ParameterSpec> manifest;
    for (std::size_t p = 0; p < parameters; ++p) {
      manifest.push_back({absl::StrCat("layer", p), {8, 5}, DType::kFloat32});
    }
    for (std::size_t b = 0; b < kBuckets; ++b) {
      std::vector<std::uint32_t>& bucket = buckets_.emplace_back(parameters / kBuckets);
      std::iota(bucket.begin(), bucket.end(),
                static_cast<std::uint32_t>(b * (parameters / kBuckets)));
    }
    hook_ = *MakeCoordinatorHook(*HookSpec::Parse(spec), manifest);
  }

  StepCosts RunStep(Verdict verdict) {
    StepCosts costs;
    for (const auto& bucket : buckets_) {
      const auto plans = hook_->Plan(bucket);
      costs.version.push_back(CostOf([&] { EXPECT_NE(hook_->SharedVersion(bucket), 0U); }));
      std::shared_ptr<SharedStateWork> work;
      costs.shared_state.push_back(CostOf([&] { work = hook_->SharedState(bucket); }));
      work->Run();
      EXPECT_GT(work->TakeBytes().size(), 0U);
      Observe(*hook_, bucket, *plans);
    }
    costs.snapshot = CostOf([&] { snapshot_ = hook_->Snapshot(); });
    costs.end_step = CostOf([&] { hook_->EndStep(verdict); });
    if (const auto chore = hook_->TakeChore()) chore->Run();
    return costs;
  }

  Cost Reinstall() {
    const auto import = hook_->ReadState(*hook_->Snapshot()->State());
    EXPECT_TRUE(import.ok()) << import.status();
    return CostOf([&] { hook_->Install(**import); });
  }

 private:
  std::vector<std::vector<std::uint32_t>> buckets_;
  std::unique_ptr<CoordinatorHook> hook_;
  std::shared_ptr<const HookSnapshot> snapshot_;
};

class CoordinatorCost : public ::testing::TestWithParam<const char*> {};

TEST_P(CoordinatorCost, DoesNotGrowWithTheParameters) {
  const std::string spec =
      std::string(GetParam()) + ",start_powerSGD_iter=0,min_compression_rate=1";
  Coordinator small(spec, 100);
  Coordinator large(spec, 100000);
  for (int step = 0; step < 6; ++step) {
    const Verdict verdict = step == 2 ? Verdict::kSkip : Verdict::kApply;
    const StepCosts a = small.RunStep(verdict);
    const StepCosts b = large.RunStep(verdict);
    // The buckets' lists are new in the first step.
    if (step > 0) {
      EXPECT_EQ(a.version, b.version) << "step " << step;
      EXPECT_EQ(a.end_step, b.end_step) << "step " << step;
    }
    EXPECT_EQ(a.shared_state, b.shared_state) << "step " << step;
    EXPECT_EQ(a.snapshot, b.snapshot) << "step " << step;
  }
  EXPECT_EQ(small.Reinstall(), large.Reinstall());
}

INSTANTIATE_TEST_SUITE_P(All, CoordinatorCost,
                         ::testing::Values("power_sgd", "power_sgd,rounds=1",
                                           "power_sgd,warm_start=false", "batched_power_sgd"));

// Each step has one parameter less than the one before, so that the newest factors of each are the
// only ones of its bucket that count.
TEST(CoordinatorMemory, IsBoundedWhateverTheBuckets) {
  constexpr std::uint32_t kParameters = 64;
  std::vector<ParameterSpec> manifest;
  for (std::uint32_t p = 0; p < kParameters; ++p) {
    manifest.push_back({absl::StrCat("layer", p), {1000, 1000}, DType::kFloat32});
  }
  std::vector<std::uint32_t> all(kParameters);
  std::iota(all.begin(), all.end(), 0U);
  for (const char* spec : {"power_sgd", "power_sgd,rounds=1", "batched_power_sgd"}) {
    const std::size_t before = held;
    const auto hook = *MakeCoordinatorHook(
        *HookSpec::Parse(absl::StrCat(spec, ",start_powerSGD_iter=0,matrix_approximation_rank=4")),
        manifest);
    for (std::uint32_t step = 0; step < 2 * kParameters; ++step) {
      const BucketPositions bucket = BucketPositions(all).first(kParameters - step % kParameters);
      const auto plans = hook->Plan(bucket);
      ASSERT_NE(hook->SharedVersion(bucket), 0U);
      Observe(*hook, bucket, *plans);
      hook->EndStep(Verdict::kApply);
      if (const auto chore = hook->TakeChore()) chore->Run();
      // And the descriptions of the parameters.
      ASSERT_LT(held - before, hook->StateBytes() + (std::size_t{1} << 18)) << spec << " " << step;
    }
  }
}

}  // namespace
}  // namespace gradwire

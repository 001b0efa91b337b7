// After its first step a PowerSGD run takes memory for its own small descriptions only: what it
// allocates does not depend on how large the gradients are.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "gradwire/hooks/registry.h"
#include "gtest/gtest.h"
#include "hooks/coordinator_hook.h"

namespace {
std::size_t allocated = 0;

void* Allocate(std::size_t bytes) {
  allocated += bytes;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) { return Allocate(bytes); }
void* operator new[](std::size_t bytes) { return Allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  allocated += bytes;
  const auto to = static_cast<std::size_t>(alignment);
  void* memory = std::aligned_alloc(to, (bytes + to - 1) / to * to);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace gradwire {
namespace {

struct Bytes {
  std::size_t first = 0;  // allocated in the first step
  std::size_t later = 0;  // in the third and fourth
};

// Of one member alone in the world.
Bytes AllocatedBy(const std::string& text, std::int64_t rows, DType dtype) {
  const HookSpec spec = *HookSpec::Parse(text + ",start_powerSGD_iter=0");
  const std::vector<ParameterSpec> model = {{.name = "w", .shape = {rows, 48}, .dtype = dtype},
                                            {.name = "v", .shape = {rows, 3, 16}, .dtype = dtype},
                                            {.name = "b", .shape = {rows}, .dtype = dtype}};
  std::size_t numel = 0;
  for (const ParameterSpec& parameter : model) numel += parameter.numel();
  std::vector<std::byte> gradients(numel * ByteSize(dtype));
  std::vector<std::byte> wire(numel * ByteSize(DType::kFloat64));
  GradBucket bucket = *GradBucket::Make(0, {dtype, gradients.data(), numel}, model);
  const std::vector<std::uint32_t> bucket_of_all = {0, 1, 2};
  const auto coordinator = *MakeCoordinatorHook(spec, model);
  const auto hook = *HookRegistry::Global().Make(spec);
  Bytes counted;
  for (std::int64_t step = 0; step < 4; ++step) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = static_cast<std::byte>(i * 7 % 60);  // finite in every dtype
    }
    EXPECT_TRUE(coordinator->Plan(bucket_of_all).ok());
    EXPECT_NE(coordinator->SharedVersion(bucket_of_all), 0U);
    const auto work = coordinator->SharedState(bucket_of_all);
    work->Run();
    const std::vector<std::byte> shared = work->TakeBytes();
    const std::size_t before = allocated;
    const auto run = *hook->Start(bucket, step);
    auto plan = run->Next({});
    if (step == 0 || text.find("warm_start=false") != std::string::npos) {
      EXPECT_TRUE(run->Import(shared).ok());
    }
    for (; plan.ok() && plan->has_value(); plan = run->Next({})) {
      for (std::size_t s = 0; s < (*plan)->segments.size(); ++s) {
        const Segment& segment = (*plan)->segments[s];
        const std::span<std::byte> bytes = std::span(wire).first(segment.bytes());
        const ElementRange all{.segment = s, .begin = 0, .end = segment.numel};
        EXPECT_TRUE(run->Encode(all, bytes).ok());
        EXPECT_TRUE(run->Decode(all, bytes).ok());  // a world of one, P left as it is
      }
    }
    EXPECT_TRUE(plan.ok()) << plan.status();
    run->Commit();
    hook->EndStep(Verdict::kApply);
    coordinator->EndStep(Verdict::kApply);
    if (step == 0) counted.first = allocated - before;
    if (step >= 2) counted.later += allocated - before;
  }
  return counted;
}

TEST(PowerSgdMemory, LaterStepsAllocateNothingThatGrowsWithTheGradients) {
  for (const char* spec :
       {"power_sgd", "power_sgd,matrix_approximation_rank=4", "power_sgd,rounds=1",
        "power_sgd,error_feedback=local,comm_wrapper=fp16", "power_sgd,use_error_feedback=false",
        "power_sgd,warm_start=false", "batched_power_sgd", "batched_power_sgd,rounds=1"}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
      const Bytes small = AllocatedBy(spec, 64, dtype);
      const Bytes large = AllocatedBy(spec, 4096, dtype);
      EXPECT_GT(large.first, small.first + 4096) << "the count does not see the hook's memory";
      EXPECT_EQ(large.later, small.later) << spec << " " << Name(dtype);
    }
  }
}

}  // namespace
}  // namespace gradwire

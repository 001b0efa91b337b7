// The work for a bucket is that of its own parameters, however many lie in other buckets. Memory
// shows it: what a call allocates is counted.
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/client/core/member_fixture.h"

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
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace gradwire::client {
namespace {

// By one bucket's way from the announcement to its result, in a session of `parameters` parameters.
std::size_t AllocatedForABucket(std::size_t parameters) {
  MemberOptions options = SmallOptions();
  options.manifest.clear();
  for (std::size_t i = 0; i < parameters; ++i) {
    options.manifest.push_back({"p" + std::to_string(10'000 + i), {16}, DType::kFloat32});
  }
  RecordingHook hook;
  Member member(options, &hook);
  std::vector<float> buffer(16);
  GradBucket bucket =
      *GradBucket::Make(0, {DType::kFloat32, buffer.data(), 16}, {options.manifest[0]});
  const wire::PayloadRef result = Bytes(64);
  Effects effects;
  const std::size_t before = allocated;
  EXPECT_TRUE(member.StartBucket(1, bucket, effects).ok());
  member.Receive({wire::Grant{{.bucket = 0}}}, effects);
  member.Receive({wire::Result{.id = {.bucket = 0}}, result}, effects);
  const std::size_t taken = allocated - before;
  EXPECT_FALSE(member.failed()) << member.failure();
  return taken;
}

TEST(MemberMemory, OfABucketDoesNotGrowWithTheManifest) {
  const std::size_t small = AllocatedForABucket(10);
  EXPECT_GT(small, 0U);
  EXPECT_EQ(AllocatedForABucket(80'000), small);
}

}  // namespace
}  // namespace gradwire::client

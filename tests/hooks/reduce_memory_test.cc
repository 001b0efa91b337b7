// What a thread that reduces holds between calls, and takes during one, is what reduce.h says.
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hooks/reduce.h"

namespace {
std::size_t held = 0;
std::size_t most = 0;
std::size_t calls = 0;

void* Allocate(std::size_t bytes) {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  ++calls;
  held += malloc_usable_size(memory);
  most = std::max(most, held);
  return memory;
}

void Free(void* memory) {
  if (memory != nullptr) held -= malloc_usable_size(memory);
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

constexpr std::size_t kSmall = 65536;  // bytes that malloc and vectors of pointers may add

struct Memory {
  std::size_t after = 0;   // held more than before the call
  std::size_t during = 0;  // at most
  std::size_t calls = 0;   // of the allocator
};

template <class Call>
Memory MemoryOf(Call call) {
  const std::size_t before = held;
  const std::size_t calls_before = calls;
  most = held;
  call();
  return {held - std::min(held, before), most - before, calls - calls_before};
}

// `count` matrices of `rows` x 4 from each of two members.
Memory MemoryOfMatrices(std::size_t count, std::size_t rows) {
  const Segment segment{.dtype = DType::kFloat16,
                        .numel = count * rows * 4,
                        .op = ReduceOp::kOrthonormalizedSum,
                        .matrices = std::vector<MatrixShape>(count, {rows, 4})};
  const std::vector<std::byte> bytes(segment.bytes(), std::byte{0x3C});
  const std::span<const std::byte> piece(bytes);
  const std::vector<Pieces> inputs(2, Pieces(&piece, 1));
  std::vector<std::byte> out(segment.bytes());
  return MemoryOf([&] { ReduceOrthonormalized(segment, inputs, out); });
}

TEST(ReduceMemory, OfLargeMatricesIsGivenBack) {
  constexpr std::size_t kRows = 1 << 20;
  const Memory large = MemoryOfMatrices(3, kRows);
  EXPECT_LE(large.after, kKeptScratchBytes);
  EXPECT_LE(large.during, kRows * 4 * sizeof(double) + kSmall);
  EXPECT_GE(large.during, kRows * 4 * sizeof(double)) << "the count does not see the scratch";
}

TEST(ReduceMemory, OfSmallMatricesIsKept) {
  constexpr std::size_t kRows = 20000;
  static_assert(kRows * 4 * sizeof(double) <= kKeptScratchBytes);
  MemoryOfMatrices(2, kRows);
  const Memory again = MemoryOfMatrices(2, kRows);
  EXPECT_EQ(again.calls, 0U);
  EXPECT_EQ(again.after, 0U);
}

TEST(ReduceMemory, OfManyRawContributionsIsGivenBack) {
  constexpr std::size_t kMembers = 2000;
  constexpr std::size_t kNumel = 4096;
  const std::vector<float> gradient(kNumel, 1.0F);
  const std::span<const std::byte> piece = std::as_bytes(std::span(gradient));
  const std::vector<Pieces> inputs(kMembers, Pieces(&piece, 1));
  const RawContributions raw{
      .dtype = DType::kFloat32, .divisor = 3, .is_raw = std::vector<bool>(kMembers, true)};
  std::vector<std::byte> out(kNumel * ByteSize(DType::kFloat16));
  const Memory memory =
      MemoryOf([&] { Reduce(DType::kFloat16, ReduceOp::kSum, kNumel, inputs, out, raw); });
  EXPECT_LE(memory.after, kKeptScratchBytes);
  EXPECT_GT(memory.during, kKeptScratchBytes);
}

}  // namespace
}  // namespace gradwire

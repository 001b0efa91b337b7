// Memory of the heap becomes shared and private again in place, and forks do not reach into it.
#include "client/memory/shared_pages.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/memory/gradient_memory.h"
#include "client/memory/private_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = 40 * kPage + 100;

// A block of malloc, filled with a pattern, with other bytes around it: it begins so far after a
// page does, wherever the allocator has room.
constexpr std::size_t kIntoAPage = 16;

struct Block {
  explicit Block(std::size_t bytes = kBytes, std::size_t skip = 0)
      : whole(static_cast<std::byte*>(std::aligned_alloc(
                  kPage, (kIntoAPage + skip + bytes + kPage - 1) / kPage * kPage)),
              [](std::byte* p) { std::free(p); }),
        memory(whole.get() + kIntoAPage + skip, bytes) {
    for (std::size_t i = 0; i < bytes; ++i) memory[i] = Pattern(i);
  }
  static std::byte Pattern(std::size_t i) { return static_cast<std::byte>(i * 7 + i / 256); }
  bool IsPattern() const {
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (memory[i] != Pattern(i)) return false;
    }
    return true;
  }
  bool IsAll(std::byte value) const {
    return std::all_of(memory.begin(), memory.end(), [=](std::byte b) { return b == value; });
  }
  std::shared_ptr<std::byte> whole;
  std::span<std::byte> memory;
};

std::span<std::byte> PagesIn(std::span<std::byte> memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t head = (kPage - address % kPage) % kPage;
  return memory.subspan(head, (memory.size() - head) / kPage * kPage);
}

bool IsPrivate(std::span<std::byte> memory) {
  std::ifstream smaps("/proc/self/smaps");
  return CheckPrivateMemory(memory, smaps).ok();
}

// Runs `child` in a forked process and returns its exit code.
int InFork(const std::function<int()>& child) {
  const pid_t pid = fork();
  if (pid == 0) _exit(child());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class SharedPagesTest : public ::testing::TestWithParam<std::size_t> {
};  // from a block's beginning

TEST_P(SharedPagesTest, ContentsStayAndTheAliasShowsThem) {
  Block block(kBytes, GetParam());
  auto shared = SharedPages::Share(block.memory, block.whole);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_FALSE(IsPrivate(PagesIn(block.memory)));
  EXPECT_TRUE(block.IsPattern());
  const auto alias = (*shared)->Alias(block.memory);
  ASSERT_TRUE(alias.has_value());
  (*shared)->Gather(block.memory);
  EXPECT_TRUE(std::equal(alias->begin(), alias->end(), block.memory.begin()));
  std::fill(alias->begin(), alias->end(), std::byte{9});
  (*shared)->Scatter(block.memory);
  EXPECT_TRUE(block.IsAll(std::byte{9}));
  (*shared)->MakePrivate();
  EXPECT_TRUE(IsPrivate(block.memory));
  EXPECT_TRUE(block.IsAll(std::byte{9}));
  // The other side no longer reaches the memory.
  std::fill(alias->begin(), alias->end(), std::byte{1});
  (*shared)->Scatter(block.memory);
  EXPECT_TRUE(block.IsAll(std::byte{9}));
}

INSTANTIATE_TEST_SUITE_P(Begins, SharedPagesTest, ::testing::Values(0, 64, 4000, 4096));

// Bytes beside the memory, in its first and last page, are another's: they neither change nor show.
TEST(SharedPagesTest, WhatLiesBesideTheMemoryIsNotShared) {
  Block block(kBytes + 4 * kPage);
  const std::span<std::byte> inner = block.memory.subspan(kPage + 100, kBytes);
  auto shared = SharedPages::Share(inner, block.whole);
  ASSERT_TRUE(shared.ok()) << shared.status();
  (*shared)->Gather(inner);
  const std::span<const std::byte> segment = (*shared)->segment()->content();
  const std::span<std::byte> alias = *(*shared)->Alias(inner);
  EXPECT_TRUE(std::equal(alias.begin(), alias.end(), inner.begin()));
  const std::span<const std::byte> before(segment.data(), alias.data());
  const std::span<const std::byte> after(alias.data() + alias.size(),
                                         segment.data() + segment.size());
  for (const auto beside : {before, after}) {
    EXPECT_TRUE(
        std::all_of(beside.begin(), beside.end(), [](std::byte b) { return b == std::byte{}; }));
  }
  std::fill(alias.begin(), alias.end(), std::byte{3});
  (*shared)->Scatter(inner);
  for (std::size_t i = 0; i < block.memory.size(); ++i) {
    const bool is_inner = i >= kPage + 100 && i < kPage + 100 + kBytes;
    ASSERT_EQ(block.memory[i], is_inner ? std::byte{3} : Block::Pattern(i)) << i;
  }
}

// A bucket may be a part of what is shared: only its bytes travel.
TEST(SharedPagesTest, GatherAndScatterTouchOnlyTheirPart) {
  Block block(kBytes, 64);
  auto shared = SharedPages::Share(block.memory, block.whole);
  ASSERT_TRUE(shared.ok()) << shared.status();
  const std::span<std::byte> alias = *(*shared)->Alias(block.memory);
  (*shared)->Gather(block.memory);
  block.memory[0] = std::byte{1};
  block.memory[10] = std::byte{2};
  (*shared)->Gather(block.memory.subspan(10, 5));
  EXPECT_EQ(alias[0], Block::Pattern(0));
  EXPECT_EQ(alias[10], std::byte{2});
  alias[kBytes - 1] = std::byte{8};
  alias[kBytes - 9] = std::byte{8};
  (*shared)->Scatter(block.memory.last(5));
  EXPECT_EQ(block.memory[kBytes - 1], std::byte{8});
  EXPECT_EQ(block.memory[kBytes - 9], Block::Pattern(kBytes - 9));
  EXPECT_FALSE((*shared)->Alias({block.memory.data() - 1, 8}).has_value());
}

TEST(SharedPagesTest, TheOwnerLivesUntilThePagesArePrivate) {
  Block block;
  bool private_then = false;
  auto owner = std::shared_ptr<void>(
      nullptr, [&, whole = block.whole](void*) { private_then = IsPrivate(block.memory); });
  auto shared = SharedPages::Share(block.memory, std::move(owner));
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_FALSE(private_then);
  shared->reset();
  EXPECT_TRUE(private_then);
  EXPECT_TRUE(block.IsPattern());
}

TEST(SharedPagesTest, TheAllocatorGetsOrdinaryMemoryBack) {
  for (int i = 0; i < 20; ++i) {
    Block block(kBytes + static_cast<std::size_t>(i) * 10'000);
    auto shared = SharedPages::Share(block.memory, nullptr);
    ASSERT_TRUE(shared.ok()) << shared.status();
    shared->reset();
    EXPECT_TRUE(IsPrivate(block.memory));
  }
  malloc_trim(0);
  const Block other(std::size_t{1} << 20);
  EXPECT_TRUE(IsPrivate(other.memory));
}

// Readers see the same bytes at every moment.
TEST(SharedPagesTest, AReaderNoticesNothing) {
  Block block(64 * kPage);
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::atomic<int> passes = 0;
  std::thread reader([&] {
    while (!stop) {
      wrong += !block.IsPattern();
      ++passes;
    }
  });
  while (passes == 0) std::this_thread::yield();
  for (int i = 0; i < 50; ++i) {
    auto shared = SharedPages::Share(block.memory, nullptr);
    ASSERT_TRUE(shared.ok()) << shared.status();
  }
  stop = true;
  reader.join();
  EXPECT_EQ(wrong, 0);
}

// Whichever thread writes while the pages become private again, no write is lost.
TEST(SharedPagesTest, AWriterLosesNothingWhenThePagesBecomePrivate) {
  Block block(64 * kPage);
  auto* const counter = reinterpret_cast<std::uint64_t*>(PagesIn(block.memory).data() + 8 * kPage);
  *counter = 0;
  std::atomic<bool> stop = false;
  std::uint64_t count = 0;
  std::shared_ptr<SharedPages> shared;
  for (int i = 0; i < 100; ++i) {
    auto made = SharedPages::Share(block.memory, nullptr);
    ASSERT_TRUE(made.ok()) << made.status();
    shared = *std::move(made);
    stop = false;
    std::atomic<bool> writes = false;
    std::thread writer([&] {
      while (!stop) {
        // A read that must see the last write.
        auto* const now = static_cast<volatile std::uint64_t*>(counter);
        ASSERT_EQ(*now, count);
        *now = ++count;
        writes = true;
      }
    });
    while (!writes) std::this_thread::yield();
    shared.reset();
    stop = true;
    writer.join();
    ASSERT_EQ(*counter, count);
  }
}

// Against the rule, the memory is unmapped while it is shared, and its place has another mapping.
TEST(SharedPagesTest, WhatIsMappedThereInsteadIsLeftAlone) {
  const auto map = [](void* where, int flags) {
    return mmap(where, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  };
  void* const memory = map(nullptr, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto shared = SharedPages::Share({static_cast<std::byte*>(memory), kBytes}, nullptr);
  ASSERT_TRUE(shared.ok()) << shared.status();
  ASSERT_EQ(map(memory, MAP_FIXED), memory);
  std::memset(memory, 4, kBytes);
  std::memset((*shared)->Alias({static_cast<std::byte*>(memory), 1})->data(), 5, 1);
  shared->reset();
  EXPECT_EQ(*static_cast<char*>(memory), 4);
  munmap(memory, kBytes);
}

// Private pages need no memory beside their own, also where the allocator drops them.
TEST(SharedPagesTest, TheSegmentGivesItsPagesBack) {
  void* const memory =
      mmap(nullptr, 64 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 6, 64 * kPage);
  auto shared = SharedPages::Share({static_cast<std::byte*>(memory), 64 * kPage}, nullptr);
  ASSERT_TRUE(shared.ok()) << shared.status();
  (*shared)->MakePrivate();
  struct stat info {};
  ASSERT_EQ(fstat((*shared)->segment()->fd(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0);
  EXPECT_EQ(*(static_cast<char*>(memory) + 5 * kPage), 6);
  ASSERT_EQ(madvise(memory, 64 * kPage, MADV_DONTNEED), 0);
  EXPECT_EQ(*(static_cast<char*>(memory) + 5 * kPage), 0);
  shared->reset();
  munmap(memory, 64 * kPage);
}

// ---- Refusals

TEST(SharedPagesTest, RefusesWhatIsSmallSharedAlreadyOrNotThisProcesssOwn) {
  const auto why = [](std::span<std::byte> memory) {
    auto shared = SharedPages::Share(memory, nullptr);
    EXPECT_EQ(shared.status().code(), absl::StatusCode::kFailedPrecondition);
    return std::string(shared.status().message());
  };
  Block small(SharedPages::kLeastBytes - 1);
  EXPECT_THAT(why(small.memory), HasSubstr("65535 bytes; shared are 65536 and more"));
  Block twice;
  auto first = SharedPages::Share(twice.memory, nullptr);
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(why(twice.memory), HasSubstr("mapped as rw-s"));
  EXPECT_TRUE(twice.IsPattern());
  void* const mapped =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_THAT(why({static_cast<std::byte*>(mapped), kBytes}), HasSubstr("mapped as rw-s"));
  munmap(mapped, kBytes);
}

// ---- Forks

TEST(SharedPagesTest, AChildsWritesDoNotReachTheParent) {
  Block block;
  auto shared = SharedPages::Share(block.memory, block.whole);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(InFork([&] {
              if (!block.IsPattern()) return 1;
              std::fill(block.memory.begin(), block.memory.end(), std::byte{5});
              return block.IsAll(std::byte{5}) ? 0 : 2;
            }),
            0);
  EXPECT_TRUE(block.IsPattern());
  const std::span<std::byte> alias = *(*shared)->Alias(block.memory);
  (*shared)->Gather(block.memory);
  EXPECT_TRUE(std::equal(alias.begin(), alias.end(), block.memory.begin()));
}

// The child's allocator hands the freed pages out again, and a child of the child as well.
TEST(SharedPagesTest, AChildMayFreeTheMemoryAndUseItAgain) {
  Block block(100'000);
  auto shared = SharedPages::Share(block.memory, nullptr);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(InFork([&] {
              shared->reset();
              block.whole.reset();
              std::vector<Block> again;
              for (int i = 0; i < 50; ++i) again.emplace_back(100'000);
              return InFork([&] { return again.front().IsPattern() ? 7 : 1; });
            }),
            7);
  EXPECT_TRUE(block.IsPattern());
  EXPECT_FALSE(IsPrivate(PagesIn(block.memory)));
}

TEST(SharedPagesTest, AllocatedGradientsArePrivateInAChildToo) {
  auto memory = std::make_shared<GradientMemory>();
  const std::shared_ptr<std::byte> gradients = memory->Allocate(kBytes);
  gradients.get()[10] = std::byte{1};
  EXPECT_EQ(InFork([&] {
              if (gradients.get()[10] != std::byte{1}) return 1;
              gradients.get()[10] = std::byte{2};
              return 0;
            }),
            0);
  EXPECT_EQ(gradients.get()[10], std::byte{1});
}

// ---- Through GradientMemory

TEST(SharedPagesTest, MemoryIsFoundUntilItsPointerIsGone) {
  auto gradients = std::make_shared<GradientMemory>();
  Block block;
  const std::uint64_t before = gradients->version();
  auto pointer = gradients->Share(block.memory, block.whole);
  ASSERT_TRUE(pointer.ok()) << pointer.status();
  EXPECT_GT(gradients->version(), before);
  const auto pages = gradients->PagesOf(block.memory.subspan(8, 80));
  ASSERT_NE(pages, nullptr);
  ASSERT_EQ(gradients->segments().size(), 1U);
  EXPECT_EQ(gradients->segments().front(), pages->segment());
  pointer->reset();  // though `pages` are still held, as by a bucket in flight
  EXPECT_TRUE(IsPrivate(block.memory));
  EXPECT_EQ(gradients->PagesOf(block.memory), nullptr);
  EXPECT_TRUE(block.IsPattern());
}

// Several connections to daemons keep the segments that they have offered.
TEST(SharedPagesTest, MemoryThatIsGivenBackIsForgottenThoughItsSegmentsAreHeld) {
  auto gradients = std::make_shared<GradientMemory>();
  Block block;
  auto pointer = gradients->Share(block.memory, block.whole);
  ASSERT_TRUE(pointer.ok()) << pointer.status();
  std::shared_ptr<std::byte> allocated = gradients->Allocate(kBytes);
  const auto held = gradients->segments();
  const auto held_by_another = gradients->segments();
  EXPECT_EQ(held.size(), 2U);
  pointer->reset();
  EXPECT_EQ(gradients->segments().size(), 1U);
  const std::shared_ptr<std::byte> part(allocated, allocated.get() + 1);
  allocated.reset();
  EXPECT_EQ(gradients->segments().size(), 1U);
}

TEST(SharedPagesTest, ABucketIsReducedThroughTheAlias) {
  auto gradients = std::make_shared<GradientMemory>();
  Block block(kBytes, 16);
  const auto pointer = gradients->Share(block.memory, block.whole);
  ASSERT_TRUE(pointer.ok()) << pointer.status();
  const TensorView own{DType::kFloat32, block.memory.data(), kBytes / 4};
  const ParameterSpec parameter{.name = "w", .shape = {kBytes / 4}};
  GradBucket bucket = *GradBucket::Make(0, own, {parameter});
  const BucketAlias alias(*gradients, bucket);
  auto* const there = static_cast<std::byte*>(bucket.buffer().data);
  EXPECT_NE(there, block.memory.data());
  EXPECT_TRUE(std::equal(block.memory.begin(), block.memory.end(), there));
  std::fill_n(there, kBytes, std::byte{9});
  EXPECT_EQ(block.memory.front(), Block::Pattern(0));  // in a page of the process's own
  alias.Scatter();
  EXPECT_TRUE(block.IsAll(std::byte{9}));

  Block elsewhere;
  const TensorView other{DType::kFloat32, elsewhere.memory.data(), kBytes / 4};
  GradBucket copied = *GradBucket::Make(0, other, {parameter});
  BucketAlias(*gradients, copied).Scatter();
  EXPECT_EQ(copied.buffer().data, elsewhere.memory.data());
}

}  // namespace
}  // namespace gradwire::client

// What the kernel says about mappings decides; the texts are in its form.
#include "client/memory/private_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using ::testing::HasSubstr;

std::string Mapping(const std::string& header, const std::string& flags) {
  return header + "\nSize:  4 kB\nRss:  4 kB\nTHPeligible:    0\nVmFlags: " + flags + " \n";
}

const std::string kHeap = "00010000-00012000 rw-p 00000000 00:00 0                   [heap]";
const std::string kNext = "00012000-00013000 rw-p 00000000 00:00 0 ";

std::span<const std::byte> Memory(std::uintptr_t begin, std::uintptr_t end) {
  return {reinterpret_cast<const std::byte*>(begin), end - begin};  // NOLINT: never read
}

absl::Status Check(const std::string& text, std::uintptr_t begin = 0x10000,
                   std::uintptr_t end = 0x12000) {
  std::istringstream smaps(text);
  return CheckPrivateMemory(Memory(begin, end), smaps);
}

TEST(PrivateMemoryTest, TakesAnonymousPagesInOneMappingOrSeveral) {
  const std::string two = Mapping(kHeap, "rd wr mr mw me ac sd") + Mapping(kNext, "rd wr mr mw me");
  EXPECT_TRUE(Check(two).ok());
  EXPECT_TRUE(Check(two, 0x11000, 0x13000).ok());
}

TEST(PrivateMemoryTest, RefusesGaps) {
  const std::string heap = Mapping(kHeap, "rd wr mr mw me ac");
  const std::string later = Mapping("00020000-00021000 rw-p 00000000 00:00 0 ", "rd wr mr mw me");
  for (const std::string& text : {std::string(), heap, heap + later}) {
    EXPECT_THAT(std::string(Check(text, 0x11000, 0x20800).message()), HasSubstr("not described"));
  }
}

TEST(PrivateMemoryTest, RefusesWhatIsNotPrivateAndWritable) {
  const auto why = [](const std::string& header) {
    return std::string(
        Check(Mapping("00010000-00012000 " + header, "rd wr mr mw me ac")).message());
  };
  EXPECT_THAT(why("rw-s 00000000 00:01 77 /memfd:x (deleted)"), HasSubstr("mapped as rw-s"));
  EXPECT_THAT(why("r--p 00000000 00:00 0 "), HasSubstr("mapped as r--p"));
  EXPECT_THAT(why("rwxp 00000000 00:00 0 "), HasSubstr("mapped as rwxp"));
  EXPECT_THAT(why("rw-p 00000000 fe:01 77 /tmp/file"), HasSubstr("mapped from a file"));
}

// Locked, kept out of forks (as RDMA's libraries do), a device's, huge pages, watched by
// userfaultfd.
TEST(PrivateMemoryTest, RefusesProperties) {
  for (const std::string flag : {"lo", "dc", "io", "pf", "ht", "um", "uw", "wf", "zz"}) {
    const absl::Status status = Check(Mapping(kHeap, "rd wr mr mw me " + flag + " ac"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("has the property " + flag));
  }
  const std::string second = Mapping(kHeap, "rd wr mr mw me") + Mapping(kNext, "rd wr lo");
  EXPECT_TRUE(Check(second).ok());
  EXPECT_FALSE(Check(second, 0x11000, 0x13000).ok());
}

TEST(PrivateMemoryTest, KnowsWhatSharedPagesLeftAndWhatIsShared) {
  const auto mapped = [](const std::string& header) {
    return Mapping("00010000-00012000 " + header, "rd wr mr mw me ac");
  };
  const std::string ours = " 00000000 00:01 77 /memfd:gradwire-buckets (deleted)";
  EXPECT_TRUE(Check(mapped("rw-p" + ours)).ok());
  EXPECT_FALSE(Check(mapped("rw-s" + ours)).ok());
  const auto shared = [](const std::string& text, std::uintptr_t begin, std::uintptr_t end) {
    std::istringstream maps(text);
    return IsSharedFrom(Memory(begin, end), 77, maps);
  };
  EXPECT_TRUE(shared(mapped("rw-s" + ours), 0x10000, 0x12000));
  EXPECT_FALSE(shared(mapped("rw-s" + ours), 0x11000, 0x13000));
  EXPECT_FALSE(shared(mapped("rw-s" + ours), 0xf000, 0x11000));
  EXPECT_FALSE(shared(mapped("rw-p" + ours), 0x10000, 0x12000));
  EXPECT_FALSE(shared(mapped("rw-s 00000000 00:01 78 /memfd:gradwire-buckets"), 0x10000, 0x12000));
  EXPECT_FALSE(shared(mapped("rw-s 00000000 00:01 77 /memfd:another"), 0x10000, 0x12000));
}

TEST(PrivateMemoryTest, TakesWhatMallocGivesHere) {
  for (const std::size_t bytes : {std::size_t{5000}, std::size_t{40} << 20}) {
    const std::unique_ptr<void, decltype(&std::free)> memory(std::malloc(bytes), &std::free);
    std::ifstream smaps("/proc/self/smaps");
    EXPECT_EQ(CheckPrivateMemory({static_cast<const std::byte*>(memory.get()), bytes}, smaps),
              absl::OkStatus());
  }
}

// As libraries for RDMA do with memory that a device knows.
TEST(PrivateMemoryTest, RefusesMemoryHereThatForksDoNotGet) {
  constexpr std::size_t kBytes = 64 << 10;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(madvise(memory, kBytes, MADV_DONTFORK), 0);
  std::ifstream smaps("/proc/self/smaps");
  EXPECT_THAT(
      std::string(
          CheckPrivateMemory({static_cast<const std::byte*>(memory), kBytes}, smaps).message()),
      HasSubstr("has the property dc"));
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace gradwire::client

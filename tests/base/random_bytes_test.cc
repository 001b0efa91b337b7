#include "base/random_bytes.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::wire {
namespace {

TEST(RandomBytes, FillsAllAndNeverTheSame) {
  // More than the kernel gives in one piece when a signal comes.
  std::vector<std::byte> bytes(100'000);
  ASSERT_TRUE(FillRandom(bytes).ok());
  constexpr std::size_t kBlock = 32;
  for (std::size_t at = 0; at < bytes.size(); at += kBlock) {
    EXPECT_TRUE(std::any_of(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                            bytes.begin() + static_cast<std::ptrdiff_t>(at + kBlock),
                            [](std::byte b) { return b != std::byte{0}; }))
        << "at " << at;
  }
  const auto one = RandomNumber();
  const auto other = RandomNumber();
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_NE(*one, *other);
  EXPECT_TRUE(FillRandom({}).ok());
}

TEST(RandomBytes, AnErrorIsTheSystems) {
  constexpr std::size_t kBytes = 4096;
  void* const forbidden = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(forbidden, MAP_FAILED);
  const absl::Status status = FillRandom({static_cast<std::byte*>(forbidden), 16});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(std::string(status.message()), "getrandom failed: Bad address [GW906]");
  munmap(forbidden, kBytes);
}

}  // namespace
}  // namespace gradwire::wire

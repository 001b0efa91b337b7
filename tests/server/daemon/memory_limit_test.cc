#include "server/daemon/memory_limit.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace gradwire::server {
namespace {

TEST(MemoryLimitTest, ReadsAmountsAndParts) {
  EXPECT_EQ(ParseMemoryLimit("1048576", 1).value(), std::size_t{1} << 20);
  EXPECT_EQ(ParseMemoryLimit("64MiB", 1).value(), std::size_t{64} << 20);
  EXPECT_EQ(ParseMemoryLimit("1.5GiB", 1).value(), std::size_t{1536} << 20);
  EXPECT_EQ(ParseMemoryLimit(" 2 GB ", 1).value(), std::size_t{2'000'000'000});
  EXPECT_EQ(ParseMemoryLimit("25%", 1000).value(), 250u);
  EXPECT_EQ(ParseMemoryLimit("100%", 1000).value(), 1000u);
}

TEST(MemoryLimitTest, RefusesTheRest) {
  for (const char* text : {"", "%", "0", "0%", "101%", "-1", "1XB", "GiB", "1e3", "1..2",
                           "99999999TiB", "nan", "inf"}) {
    EXPECT_FALSE(ParseMemoryLimit(text, 1000).ok()) << text;
  }
}

TEST(MemoryLimitTest, FindsWhatThisProcessMayUse) {
  EXPECT_GE(AvailableMemory(), std::size_t{1} << 20);
  EXPECT_LT(AvailableMemory(), std::size_t{1} << 50);
}

}  // namespace
}  // namespace gradwire::server

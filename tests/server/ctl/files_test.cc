#include "server/ctl/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <string>

#include "tests/testing/process.h"

namespace gradwire::ctl {
namespace {

using ::testing::HasSubstr;

std::size_t FilesIn(const std::string& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

TEST(FilesTest, WhatIsWrittenIsRead) {
  const gradwire::testing::TemporaryFolder folder;
  const std::string path = folder / "state";
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{300'000}}) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7);
    ASSERT_TRUE(WriteFile(path, bytes).ok());
    const auto read = ReadFile(path);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == bytes) << size;
    EXPECT_EQ(FilesIn(folder.path()), 1U);
  }
}

TEST(FilesTest, AFailureLeavesNothingBehind) {
  const gradwire::testing::TemporaryFolder folder;
  EXPECT_THAT(std::string(WriteFile(folder / "no/such", "x").message()), HasSubstr("no/such"));
  ASSERT_TRUE(std::filesystem::create_directory(folder / "taken"));
  EXPECT_THAT(std::string(WriteFile(folder / "taken", "x").message()), HasSubstr("taken"));
  EXPECT_EQ(FilesIn(folder.path()), 1U);
}

// A limit on the size of files stands for a disk that is full in the middle of a write.
TEST(FilesTest, AFullDiskLeavesTheOldFile) {
  const gradwire::testing::TemporaryFolder folder;
  const std::string path = folder / "state";
  ASSERT_TRUE(WriteFile(path, "old").ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 100'000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status written = WriteFile(path, std::string(300'000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(std::string(written.message()),
              HasSubstr("cannot write " + path + ": File too large"));
  EXPECT_EQ(*ReadFile(path), "old");
  EXPECT_EQ(FilesIn(folder.path()), 1U);
}

TEST(FilesTest, IsKnownToBeWritableWithoutWriting) {
  const gradwire::testing::TemporaryFolder folder;
  ASSERT_TRUE(std::filesystem::create_directory(folder / "taken"));
  ASSERT_TRUE(WriteFile(folder / "there", "x").ok());
  for (const char* wrong : {"taken", "no/such"}) {
    EXPECT_EQ(CheckWritable(folder / wrong), WriteFile(folder / wrong, "x")) << wrong;
  }
  EXPECT_TRUE(CheckWritable(folder / "there").ok());
  EXPECT_TRUE(CheckWritable(folder / "fresh").ok());
  EXPECT_EQ(*ReadFile(folder / "there"), "x");
  EXPECT_EQ(FilesIn(folder.path()), 2U);
}

TEST(FilesTest, WhatIsNoFileIsNamed) {
  const gradwire::testing::TemporaryFolder folder;
  EXPECT_THAT(std::string(ReadFile(folder / "missing").status().message()), HasSubstr("missing"));
  EXPECT_THAT(std::string(ReadFile(folder.path()).status().message()), HasSubstr(folder.path()));
}

TEST(FilesTest, ALongFileIsRefused) {
  const gradwire::testing::TemporaryFolder folder;
  ASSERT_TRUE(WriteFile(folder / "file", std::string(1000, 'x')).ok());
  EXPECT_EQ(ReadFile(folder / "file", 1000)->size(), 1000U);
  EXPECT_THAT(std::string(ReadFile(folder / "file", 999).status().message()),
              HasSubstr("File too large"));
}

}  // namespace
}  // namespace gradwire::ctl

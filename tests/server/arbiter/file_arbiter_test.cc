// Claims of rosters in a folder.
#include "server/arbiter/file_arbiter.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/arbiter/roster_text.h"
#include "tests/testing/process.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr std::uint64_t kLineage = 0x1122334455667788;

RosterClaim Claim(std::uint64_t number, std::vector<int> ranks = {0, 2}) {
  RosterClaim claim{.number = number, .ranks = std::move(ranks)};
  for (const int rank : claim.ranks) {
    claim.processes.push_back(0x1000 + static_cast<std::uint64_t>(rank));
  }
  return claim;
}

class FileArbiterTest : public ::testing::Test {
 protected:
  std::shared_ptr<const FileArbiter> Open() const {
    auto arbiter = FileArbiter::Open(folder());
    EXPECT_TRUE(arbiter.ok()) << arbiter.status();
    return *arbiter;
  }
  std::string folder() const { return folder_ / ""; }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  testing::TemporaryFolder folder_;
};

TEST_F(FileArbiterTest, KeepsItsId) {
  const std::uint64_t id = Open()->id();
  EXPECT_NE(id, 0U);
  EXPECT_EQ(Open()->id(), id);
  EXPECT_THAT(Names(), UnorderedElementsAre("id"));
}

TEST_F(FileArbiterTest, SaysWhatIsClaimed) {
  const auto one = Open();
  const auto other = Open();
  const auto none = one->Claim(kLineage, {});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->highest, RosterClaim());
  RosterClaim claim = Claim(2);
  claim.ended = {{.step = 4, .verdict = Verdict::kApply, .digest = 77},
                 {.step = 5,
                  .verdict = Verdict::kSkip,
                  .dropped = true,
                  .change = wire::MembershipChange{.newcomers = {2}, .ranks = {0, 2}},
                  .reason = "a member was lost in it"}};
  const auto own = one->Claim(kLineage, claim);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_TRUE(own->is_own);
  EXPECT_EQ(own->highest, claim);
  const auto late = other->Claim(kLineage, Claim(2, {1}));
  ASSERT_TRUE(late.ok());
  EXPECT_FALSE(late->is_own);
  EXPECT_EQ(late->highest, claim);
  EXPECT_TRUE(other->Claim(kLineage, Claim(3, {1}))->is_own);
  const auto read = one->Claim(kLineage, {});
  EXPECT_FALSE(read->is_own);
  EXPECT_EQ(read->highest, Claim(3, {1}));
  // A lower number that was left out is no roster any more.
  EXPECT_FALSE(one->Claim(kLineage, Claim(1))->is_own);
  EXPECT_EQ(other->Claim(kLineage + 1, {})->highest, RosterClaim());
}

// Threads and processes claim the same numbers: each has one winner, whom all others name.
TEST_F(FileArbiterTest, ARaceHasOneWinner) {
  constexpr int kProcesses = 4;
  constexpr int kThreads = 4;
  constexpr int kNumbers = 25;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    const auto arbiter = FileArbiter::Open(folder());
    std::vector<std::string> said(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int n = 1; n <= kNumbers; ++n) {
          const auto number = static_cast<std::uint64_t>(n);
          const auto answer = (*arbiter)->Claim(kLineage, Claim(number, {p * kThreads + t}));
          const bool is_own = answer.ok() && answer->is_own && answer->highest.number == number;
          absl::StrAppend(&said[static_cast<std::size_t>(t)], is_own ? absl::StrCat(n, "\n") : "");
          if (!answer.ok()) absl::StrAppend(&said[static_cast<std::size_t>(t)], "error\n");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int t = 0; t < kThreads; ++t) {
      std::ofstream(folder_ / absl::StrCat("said-", p * kThreads + t))
          << (*arbiter)->id() << "\n"
          << said[static_cast<std::size_t>(t)];
    }
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  const auto arbiter = Open();
  std::multiset<std::string> won;
  for (int i = 0; i < kProcesses * kThreads; ++i) {
    std::ifstream said(folder_ / absl::StrCat("said-", i));
    std::string line;
    ASSERT_TRUE(std::getline(said, line));
    EXPECT_EQ(line, absl::StrCat(arbiter->id()));  // the folder's first id won, too
    while (std::getline(said, line)) {
      won.insert(line);
      // As the file has it.
      std::ifstream file(folder_ / absl::StrCat(Hex16(kLineage), "-", line));
      const std::string text((std::istreambuf_iterator<char>(file)), {});
      const auto read = ParseRoster(text);
      ASSERT_TRUE(read.ok()) << line;
      EXPECT_EQ(read->claim.ranks, std::vector<int>{i});
    }
  }
  // Nobody who was overtaken calls a number its own, so that some have no winner.
  for (const std::string& number : won) EXPECT_EQ(won.count(number), 1U) << number;
  EXPECT_EQ(won.count(absl::StrCat(kNumbers)), 1U);
}

TEST_F(FileArbiterTest, IgnoresForeignFiles) {
  const auto arbiter = Open();
  ASSERT_TRUE(arbiter->Claim(kLineage, Claim(2)).ok());
  const std::string lineage = Hex16(kLineage);
  for (const std::string& name :
       {std::string("README"), lineage, lineage + "-", lineage + "-03", lineage + "-x",
        lineage + "-4.0011223344556677.partial", lineage + "-99999999999999999999999"}) {
    Write(name, "hello");
  }
  const auto answer = arbiter->Claim(kLineage, {});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->highest.number, 2U);
}

TEST_F(FileArbiterTest, NamesAFileThatIsNoRoster) {
  const auto arbiter = Open();
  const std::string whole = RosterText(Claim(2), 7);
  const std::string name = Hex16(kLineage) + "-2";
  for (const std::string& text :
       {std::string(), std::string("hello\n"), whole.substr(0, whole.size() - 5),
        std::string("gradwire roster 1\nid 0000000000000007\nend\n"),
        std::string("gradwire roster 1\nid 0000000000000007\nrank 5000 0000000000000001\nend\n"),
        std::string("gradwire roster 1\nid 0000000000000007\nrank 0 0000000000000001\nended "
                    "zz\nend\n")}) {
    Write(name, text);
    const auto answer = arbiter->Claim(kLineage, {});
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(answer.status().message()), HasSubstr(name));
  }
  Write(name, whole);
  EXPECT_EQ(arbiter->Claim(kLineage, {})->highest, Claim(2));
}

// Who was left out may still look for a daemon.
TEST_F(FileArbiterTest, ForgetsAllButTheHighest) {
  const auto arbiter = Open();
  for (const std::uint64_t number : {2U, 3U, 10U}) {
    ASSERT_TRUE(arbiter->Claim(kLineage, Claim(number)).ok());
  }
  ASSERT_TRUE(arbiter->Claim(1, Claim(2)).ok());
  ASSERT_TRUE(arbiter->Forget(kLineage).ok());
  EXPECT_THAT(Names(), UnorderedElementsAre("id", Hex16(kLineage) + "-10", Hex16(1) + "-2"));
  EXPECT_TRUE(arbiter->Forget(4711).ok());
}

TEST_F(FileArbiterTest, RefusesWhatIsNoFolderForIt) {
  const auto refusal = [](const std::string& folder) {
    const absl::Status checked = FileArbiter::Check(folder);
    EXPECT_EQ(FileArbiter::Open(folder).status().message(), checked.message());
    return std::string(checked.message());
  };
  EXPECT_THAT(refusal(folder_ / "none"), HasSubstr("none\": No such file or directory"));
  Write("file", "");
  EXPECT_THAT(refusal(folder_ / "file"), HasSubstr("Not a directory"));
  EXPECT_THAT(refusal(folder_ / "file"), HasSubstr("[GW60"));
  Write("id", "hello");
  const absl::Status other = FileArbiter::Open(folder()).status();
  EXPECT_THAT(std::string(other.message()), HasSubstr("16 hexadecimal digits"));
}

TEST_F(FileArbiterTest, SaysWhyAFolderCannotBeWritten) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  ASSERT_EQ(chmod(folder().c_str(), 0555), 0);
  EXPECT_THAT(std::string(FileArbiter::Check(folder()).message()), HasSubstr("Permission denied"));
  ASSERT_EQ(chmod(folder().c_str(), 0755), 0);
}

TEST_F(FileArbiterTest, SaysWhyAFolderIsGone) {
  const auto arbiter = Open();
  std::filesystem::remove_all(folder());
  const auto answer = arbiter->Claim(kLineage, Claim(2));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace gradwire::server

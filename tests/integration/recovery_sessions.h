// Sessions of real processes whose daemons are killed, or end, under the training.
#pragma once

#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace gradwire {

using ::testing::HasSubstr;
using testing::Process;
using testing::TemporaryFolder;

inline constexpr int kMembers = 3;
inline constexpr int kSteps = 60;

inline int Count(const std::string& log, const std::string& text) {
  int count = 0;
  for (std::size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) {
    ++count;
  }
  return count;
}

// What the client says while it looks for a daemon.
inline constexpr char kWaits[] = "gradwire: rank ";

inline std::string WithoutWaits(const std::string& log) {
  std::vector<std::string> lines = absl::StrSplit(log, '\n');
  std::erase_if(lines, [](const std::string& line) { return line.starts_with(kWaits); });
  return absl::StrJoin(lines, "\n");
}

class Recovery : public ::testing::Test {
 protected:
  void TearDown() override {
    for (int i = 1; HasFailure() && i <= daemons_; ++i) {
      std::ifstream log(folder_ / absl::StrCat("daemon", i));
      std::cout << "---- daemon " << i << "\n" << log.rdbuf() << std::endl;
    }
  }

  std::unique_ptr<Process> StartDaemon(const std::string& listen, const std::string& loss,
                                       const std::string& grace = "30s",
                                       const std::vector<std::string>& more = {}) {
    const std::string log = folder_ / absl::StrCat("daemon", ++daemons_);
    std::vector<std::string> command = {GRADWIRE_DAEMON,
                                        "--listen",
                                        listen,
                                        "--on-coordinator-loss",
                                        loss,
                                        "--coordinator-grace",
                                        grace,
                                        "--http-listen",
                                        "off"};
    command.insert(command.end(), more.begin(), more.end());
    auto daemon = Process::Start(command, log);
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while ((*daemon)->Log().find("  grpc  ") == std::string::npos) {
      if (absl::Now() > deadline) {
        ADD_FAILURE() << "the daemon does not start: " << (*daemon)->Log();
        break;
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    return *std::move(daemon);
  }

  // What it listens on: a port that the system chose is kept.
  static std::string AddressOf(const Process& daemon) {
    for (const absl::string_view line : absl::StrSplit(daemon.Log(), '\n')) {
      const std::string_view text(line.data(), line.size());
      if (text.starts_with("  grpc  ")) return std::string(text.substr(8));
    }
    return "";
  }

  std::unique_ptr<Process> StartMember(const std::string& address, int elements, int rank,
                                       int world_size, const std::vector<std::string>& more) {
    std::vector<std::string> command = {GRADWIRE_TEST_MEMBER,
                                        "--address",
                                        address,
                                        "--session",
                                        "s",
                                        "--rank",
                                        absl::StrCat(rank),
                                        "--world-size",
                                        absl::StrCat(world_size),
                                        "--elements",
                                        absl::StrCat(elements),
                                        "--steps",
                                        absl::StrCat(kSteps),
                                        "--late-ms",
                                        "20"};
    command.insert(command.end(), more.begin(), more.end());
    auto member = Process::Start(command, folder_ / absl::StrCat("member", rank));
    EXPECT_TRUE(member.ok()) << member.status();
    return *std::move(member);
  }

  std::vector<std::unique_ptr<Process>> StartMembers(const std::string& address, int elements,
                                                     const std::string& hook = "",
                                                     std::vector<int> ranks = {0, 1, 2}) {
    std::vector<std::string> more;
    if (!hook.empty()) more = {"--hook", hook};
    std::vector<std::unique_ptr<Process>> members;
    for (const int rank : ranks) {
      members.push_back(StartMember(address, elements, rank, kMembers, more));
    }
    return members;
  }

  // Until a member has done so many steps.
  static void WaitForStep(const Process& member, int step) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (Count(member.Log(), "step ") <= step) {
      ASSERT_LT(absl::Now(), deadline) << member.Log();
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  static void WaitForLog(const Process& daemon, const std::string& text) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (Count(daemon.Log(), text) == 0) {
      ASSERT_LT(absl::Now(), deadline) << daemon.Log();
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  static void Kill(Process& daemon) {
    daemon.Signal(SIGKILL);
    ASSERT_TRUE(daemon.Wait(absl::Seconds(10)).has_value());
  }

  // Four daemons are killed in the middle of the training, which may cost a step each.
  std::unique_ptr<Process> TrainThroughLosses(std::unique_ptr<Process> daemon, int elements,
                                              const std::string& hook = "", bool may_skip = true) {
    const std::string address = AddressOf(*daemon);
    auto members = StartMembers(address, elements, hook);
    for (int lost = 0; lost < 4; ++lost) {
      WaitForStep(*members[1], 5 + 12 * lost);
      Kill(*daemon);
      daemon = StartDaemon(address, "resume");
    }
    ExpectDone(members, may_skip ? 4 : 0);
    return daemon;
  }

  // What `gradwirectl session digest` says of the session goes to the file.
  static int Digest(const Process& daemon, const std::string& file,
                    const std::vector<std::string>& options = {}) {
    std::vector<std::string> words = {GRADWIRE_CTL, "--address", AddressOf(daemon),
                                      "session",    "digest",    "s"};
    words.insert(words.end(), options.begin(), options.end());
    auto tool = Process::Start(words, file);
    if (!tool.ok()) return -1;
    const auto status = (*tool)->Wait(absl::Seconds(30));
    return status && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
  }

  // It ends with an error that has the text.
  static void ExpectError(Process& member, const ::testing::Matcher<std::string>& text) {
    const auto status = member.Wait(absl::Seconds(30));
    ASSERT_TRUE(status.has_value()) << member.Log();
    EXPECT_EQ(WEXITSTATUS(*status), 1);
    EXPECT_THAT(member.Log(), text);
  }

  // All have done all steps, the same ones were skipped by all, and no more than daemons were lost.
  static void ExpectDone(std::vector<std::unique_ptr<Process>>& members, int lost) {
    std::vector<std::string> logs;
    for (const auto& member : members) {
      const auto status = member->Wait(absl::Seconds(90));
      ASSERT_TRUE(status.has_value()) << member->Log();
      EXPECT_EQ(WEXITSTATUS(*status), 0) << member->Log();
      logs.push_back(WithoutWaits(member->Log()));
      EXPECT_THAT(logs.back(), HasSubstr("done"));
      EXPECT_LE(Count(logs.back(), "skip"), lost) << logs.back();
    }
    for (const std::string& log : logs) EXPECT_EQ(log, logs.front());
  }

  TemporaryFolder folder_;
  int daemons_ = 0;
};

}  // namespace gradwire

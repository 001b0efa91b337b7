// A minority of a session's members goes on, as daemons claim its rosters in a folder: real
// processes.
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace gradwire {
namespace {

using ::testing::HasSubstr;
using testing::Process;
using testing::TemporaryFolder;

constexpr int kMembers = 2;
constexpr int kSteps = 60;

class Arbiter : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(std::filesystem::create_directory(Claims())); }
  void TearDown() override {
    if (!HasFailure()) return;
    for (const std::string& name : logs_) {
      std::ifstream log(name);
      std::cout << "---- " << name << "\n" << log.rdbuf() << std::endl;
    }
  }

  std::string Log(const std::string& name) {
    logs_.push_back(folder_ / absl::StrCat(name, "-", logs_.size()));
    return logs_.back();
  }
  std::string Claims() const { return folder_ / "claims"; }
  // The names of rosters that are claimed.
  std::vector<std::string> Rosters() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(Claims())) {
      const std::string name = entry.path().filename();
      if (name.size() > 17 && name[16] == '-') names.push_back(name);
    }
    return names;
  }

  std::unique_ptr<Process> Start(std::vector<std::string> command, const std::string& name) {
    auto process = Process::Start(command, Log(name));
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }
  static void WaitFor(const Process& process, const std::string& text) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (process.Log().find(text) == std::string::npos) {
      ASSERT_LT(absl::Now(), deadline) << process.Log();
      absl::SleepFor(absl::Milliseconds(10));
    }
  }
  void StartDaemon(const std::string& grace = "60s", bool has_arbiter = true) {
    std::vector<std::string> command = {GRADWIRE_DAEMON,
                                        "--listen",
                                        address_.empty() ? "127.0.0.1:0" : address_,
                                        "--coordinator-grace",
                                        "5s",
                                        "--on-member-loss",
                                        "shrink",
                                        "--member-grace",
                                        grace,
                                        "--shrink-after",
                                        "2s",
                                        "--min-members",
                                        "1",
                                        "--http-listen",
                                        "off"};
    if (has_arbiter) command.insert(command.end(), {"--arbiter", Claims()});
    daemon_ = Start(command, "daemon");
    ASSERT_NO_FATAL_FAILURE(WaitFor(*daemon_, "  grpc  "));
    for (const absl::string_view line : absl::StrSplit(daemon_->Log(), '\n')) {
      const std::string text(line);
      if (text.starts_with("  grpc  ")) address_ = text.substr(8);
    }
  }
  void StartMembers(const std::string& hook = "") {
    for (int rank = 0; rank < kMembers; ++rank) {
      std::vector<std::string> command = {GRADWIRE_TEST_MEMBER,
                                          "--address",
                                          address_,
                                          "--session",
                                          "s",
                                          "--rank",
                                          absl::StrCat(rank),
                                          "--world-size",
                                          absl::StrCat(kMembers),
                                          "--elements",
                                          "20000",
                                          "--steps",
                                          absl::StrCat(kSteps),
                                          "--late-ms",
                                          "20",
                                          "--trains",
                                          "1"};
      if (!hook.empty()) command.insert(command.end(), {"--hook", hook});
      members_.push_back(Start(command, absl::StrCat("member", rank)));
    }
    WaitFor(*members_[0], "step 9 ");
  }
  static void Kill(Process& process) {
    process.Signal(SIGKILL);
    ASSERT_TRUE(process.Wait(absl::Seconds(10)).has_value());
  }
  void ExpectDone() {
    const auto status = members_[0]->Wait(absl::Seconds(120));
    ASSERT_TRUE(status.has_value()) << members_[0]->Log();
    EXPECT_EQ(WEXITSTATUS(*status), 0) << members_[0]->Log();
    EXPECT_THAT(members_[0]->Log(), HasSubstr("done"));
  }
  void ExpectError(const std::string& text) {
    const auto status = members_[0]->Wait(absl::Seconds(60));
    ASSERT_TRUE(status.has_value()) << members_[0]->Log();
    EXPECT_EQ(WEXITSTATUS(*status), 1);
    EXPECT_THAT(members_[0]->Log(), HasSubstr(text));
  }

  TemporaryFolder folder_;
  std::vector<std::string> logs_;
  std::unique_ptr<Process> daemon_;
  std::string address_;
  std::vector<std::unique_ptr<Process>> members_;
};

TEST_F(Arbiter, OneOfTwoGoesOnAlone) {
  for (const char* hook : {"", "power_sgd,start_powerSGD_iter=3"}) {
    StartDaemon();
    StartMembers(hook);
    EXPECT_EQ(Rosters().size(), 0U);  // the first one needs no claim
    Kill(*members_[1]);
    ExpectDone();
    EXPECT_THAT(daemon_->Log(), HasSubstr("the session goes on with 1 members"));
    EXPECT_EQ(Rosters().size(), 1U);
    for (const std::string& name : Rosters()) {
      EXPECT_TRUE(name.ends_with("-2")) << name;
      std::filesystem::remove(absl::StrCat(Claims(), "/", name));
    }
    members_.clear();
    address_.clear();
  }
}

TEST_F(Arbiter, ItGoesOnWhenItsDaemonIsLostToo) {
  StartDaemon();
  StartMembers();
  Kill(*daemon_);
  Kill(*members_[1]);
  StartDaemon();
  ASSERT_NO_FATAL_FAILURE(WaitFor(*daemon_, "the session goes on with 1 members"));
  Kill(*daemon_);
  StartDaemon();
  ExpectDone();
}

// As a daemon in another part of the network does, with those that it reaches.
TEST_F(Arbiter, ItWaitsForTheOthersIfTheirRosterIsClaimed) {
  StartDaemon();
  StartMembers();
  Kill(*members_[1]);
  ASSERT_NO_FATAL_FAILURE(WaitFor(*daemon_, "the session goes on with 1 members"));
  WaitFor(*members_[0], "step 20 ");
  Kill(*daemon_);
  const std::vector<std::string> rosters = Rosters();
  ASSERT_EQ(rosters.size(), 1U);
  std::ofstream(absl::StrCat(Claims(), "/", rosters[0].substr(0, 17), "3"))
      << "gradwire roster 1\nid 0000000000000001\nrank 1 00000000000000aa\nend\n";
  StartDaemon("4s");
  ExpectError("others have claimed roster 3, of ranks 1");
  EXPECT_THAT(members_[0]->Log(), HasSubstr("for rank 1 of 2 to join"));
}

TEST_F(Arbiter, ADaemonWithoutItTakesNothingOver) {
  StartDaemon();
  StartMembers();
  Kill(*daemon_);
  StartDaemon("60s", /*has_arbiter=*/false);
  ExpectError("--arbiter");
}

TEST_F(Arbiter, ADaemonThatCannotUseTheFolderDoesNotStart) {
  const auto daemon = Start({GRADWIRE_DAEMON, "--listen", "127.0.0.1:0", "--arbiter",
                             folder_ / "none", "--on-member-loss", "shrink"},
                            "none");
  const auto status = daemon->Wait(absl::Seconds(20));
  ASSERT_TRUE(status.has_value());
  EXPECT_NE(WEXITSTATUS(*status), 0);
  EXPECT_THAT(daemon->Log(), HasSubstr("none\": No such file or directory"));
}

TEST_F(Arbiter, ADaemonThatDoesNotShrinkSaysThatItIsOfNoUse) {
  const auto daemon =
      Start({GRADWIRE_DAEMON, "--listen", "127.0.0.1:0", "--arbiter", Claims()}, "fails");
  WaitFor(*daemon, "only with shrink is it used");
}

}  // namespace
}  // namespace gradwire

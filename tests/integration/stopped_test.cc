// Processes that are stopped (SIGSTOP), as by a debugger or a suspended container, and continued.
#include <signal.h>
#include <sys/wait.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::testing::AllOf;
using testing::Eventually;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Process;
using testing::TemporaryFolder;
using testing::TestDaemon;

constexpr int kMembers = 3;
constexpr int kSteps = 60;
constexpr absl::Duration kLong = absl::Seconds(60);  // whatever is waited for

int Count(const std::string& log, const std::string& text) {
  int count = 0;
  for (std::size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) {
    ++count;
  }
  return count;
}

// The members of a session as processes.
class Members {
 public:
  Members(std::string address, std::string folder, bool train, int steps = kSteps)
      : address_(std::move(address)), folder_(std::move(folder)), train_(train), steps_(steps) {
    for (int rank = 0; rank < kMembers; ++rank) members_.push_back(Start(rank));
  }

  Process& operator[](int rank) { return *members_[static_cast<std::size_t>(rank)]; }

  // The old process, which goes on.
  std::unique_ptr<Process> Replace(int rank) {
    return std::exchange(members_[static_cast<std::size_t>(rank)], Start(rank));
  }
  std::unique_ptr<Process> Take(int rank) {
    return std::exchange(members_[static_cast<std::size_t>(rank)], nullptr);
  }

  // Until it has done so many steps.
  void WaitForSteps(int rank, int steps) {
    ASSERT_TRUE(Eventually([&] { return Count((*this)[rank].Log(), "step ") >= steps; }, kLong))
        << (*this)[rank].Log();
  }

  // Those that were not taken do all steps, which end alike for all: with the same verdicts and, if
  // they train, the same model. Not more steps are skipped.
  void ExpectDone(int most_skipped) {
    std::string model;
    for (const auto& member : members_) {
      if (member == nullptr) continue;
      const auto status = member->Wait(absl::Seconds(120));
      ASSERT_TRUE(status.has_value() && WIFEXITED(*status)) << member->Log();
      const std::string log = member->Log();
      EXPECT_EQ(WEXITSTATUS(*status), 0) << log;
      EXPECT_THAT(log, HasSubstr("done"));
      EXPECT_LE(Count(log, "skip"), most_skipped) << log;
      if (!train_) continue;
      const std::string own = log.substr(log.find("model "));
      if (model.empty()) model = own;
      EXPECT_EQ(own, model);
    }
  }

 private:
  std::unique_ptr<Process> Start(int rank) {
    auto member = Process::Start(
        {GRADWIRE_TEST_MEMBER, "--address", address_, "--session", "s", "--rank",
         absl::StrCat(rank), "--world-size", absl::StrCat(kMembers), "--elements", "20000",
         "--steps", absl::StrCat(steps_), "--late-ms", "20", "--trains", train_ ? "1" : "0"},
        absl::StrCat(folder_, "/member", started_++));
    EXPECT_TRUE(member.ok()) << member.status();
    return *std::move(member);
  }

  const std::string address_;
  const std::string folder_;
  const bool train_;
  const int steps_;
  int started_ = 0;
  std::vector<std::unique_ptr<Process>> members_;
};

void ExpectError(Process& member, const ::testing::Matcher<std::string>& text) {
  const auto status = member.Wait(kLong);
  ASSERT_TRUE(status.has_value() && WIFEXITED(*status)) << member.Log();
  EXPECT_EQ(WEXITSTATUS(*status), 1);
  EXPECT_THAT(member.Log(), text);
}

// ---- Members, with a silence timeout that is shorter than the 15 s of a real daemon

server::ServerOptions Options(const std::string& policy) {
  return {.on_coordinator_loss = policy == "fail" ? "fail" : "resume",
          .on_member_loss = policy,
          .shrink_after = absl::Seconds(1),
          .heartbeat_interval = absl::Milliseconds(200),
          .silence_timeout = absl::Seconds(4)};
}

std::string Why(const TestDaemon& daemon) {
  const auto ctl =
      Process::Start({GRADWIRE_CTL, "--address", daemon.address(), "why"}, daemon.Path("why"));
  EXPECT_TRUE(ctl.ok()) << ctl.status();
  EXPECT_TRUE((*ctl)->Wait(kLong).has_value());
  return (*ctl)->Log();
}

TEST(StoppedMember, IsWaitedForAndNamed) {
  const TestDaemon daemon;
  Members members(daemon.address(), daemon.Path(""), /*train=*/false);
  members.WaitForSteps(1, 5);
  members[1].Signal(SIGSTOP);
  EXPECT_TRUE(Eventually([&] {
    const std::string why = Why(daemon);
    return why.find("waits for rank 1 (") != std::string::npos;
  })) << Why(daemon);
  members[1].Signal(SIGCONT);
  members.ExpectDone(0);
}

// The successor comes while the stopped one's stream is still open.
TEST(StoppedMember, UnderWaitHasASuccessorAndEndsWhenItGoesOn) {
  const TestDaemon daemon(Options("wait"));
  Members members(daemon.address(), daemon.Path(""), /*train=*/true, 200);
  members.WaitForSteps(1, 5);
  members[1].Signal(SIGSTOP);
  const auto stopped = members.Replace(1);
  members.WaitForSteps(1, 3);
  stopped->Signal(SIGCONT);
  ExpectError(*stopped, AllOf(HasSubstr("error: FAILED_PRECONDITION"),
                              HasSubstr("join again as a new member"), HasSubstr("[GW309]")));
  members.ExpectDone(2);
  EXPECT_THAT(members[1].Log(), HasSubstr("heal done"));
}

TEST(StoppedMember, UnderWaitGoesOnIfNobodyTookItsPlace) {
  const TestDaemon daemon(Options("wait"));
  Members members(daemon.address(), daemon.Path(""), /*train=*/true);
  members.WaitForSteps(1, 5);
  members[1].Signal(SIGSTOP);
  EXPECT_TRUE(Eventually(
      [&] { return Why(daemon).find("waits for rank 1 of 3 to come back") != std::string::npos; },
      kLong))
      << Why(daemon);
  members[1].Signal(SIGCONT);
  members.ExpectDone(2);
}

TEST(StoppedMember, UnderShrinkIsLeftBehindAndEndsWhenItGoesOn) {
  const TestDaemon daemon(Options("shrink"));
  Members members(daemon.address(), daemon.Path(""), /*train=*/true, 200);
  members.WaitForSteps(1, 5);
  members[1].Signal(SIGSTOP);
  const auto stopped = members.Take(1);
  const int before = Count(members[0].Log(), "step ");
  members.WaitForSteps(0, before + 5);
  stopped->Signal(SIGCONT);
  ExpectError(*stopped, AllOf(HasSubstr("error: FAILED_PRECONDITION"),
                              HasSubstr("went on without rank 1"), HasSubstr("[GW322]")));
  members.ExpectDone(1);
}

// ---- Daemons, which are processes of their own

class StoppedDaemon : public ::testing::Test {
 protected:
  struct Session {
    std::unique_ptr<Process> daemon;
    std::string address;
    std::unique_ptr<Members> members;
  };

  // Over TCP, where no shared memory says that the other side's process is still there.
  Session Start(const std::string& loss, int steps) {
    Session session;
    const std::string folder = folder_ / loss;
    const auto made = Process::Start({"/bin/mkdir", folder}, folder_ / "log");
    EXPECT_EQ((*made)->Wait(kLong), 0);
    auto daemon = Process::Start({GRADWIRE_DAEMON, "--listen", "127.0.0.1:0",
                                  "--on-coordinator-loss", loss, "--http-listen", "off"},
                                 folder + "/daemon");
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    session.daemon = *std::move(daemon);
    EXPECT_TRUE(Eventually([&] { return Count(session.daemon->Log(), "  grpc  ") > 0; }, kLong));
    for (const absl::string_view line : absl::StrSplit(session.daemon->Log(), '\n')) {
      const std::string text(line);
      if (text.starts_with("  grpc  ")) session.address = text.substr(8);
    }
    session.members = std::make_unique<Members>(session.address, folder, /*train=*/false, steps);
    session.members->WaitForSteps(0, 5);
    return session;
  }

  const TemporaryFolder folder_;
};

TEST_F(StoppedDaemon, ForLessThanTheSilenceIsNotNoticed) {
  const Session session = Start("fail", kSteps);
  session.daemon->Signal(SIGSTOP);
  absl::SleepFor(absl::Seconds(4));
  session.daemon->Signal(SIGCONT);
  session.members->ExpectDone(0);
  EXPECT_THAT(session.daemon->Log(), Not(HasSubstr("lost")));
}

// Members of one that fails end; the others go on with it, and nobody is declared lost.
TEST_F(StoppedDaemon, ForLongerIsLost) {
  const Session fails = Start("fail", 1'000'000);
  const Session resumes = Start("resume", 120);
  for (const Session* session : {&fails, &resumes}) session->daemon->Signal(SIGSTOP);
  for (int rank = 0; rank < kMembers; ++rank) {
    ExpectError((*fails.members)[rank],
                AllOf(HasSubstr("error: UNAVAILABLE"),
                      HasSubstr("nothing was heard from it for 15s"), HasSubstr("[GW308]")));
  }
  for (int rank = 0; rank < kMembers; ++rank) {
    EXPECT_TRUE(Eventually(
        [&] {
          return Count((*resumes.members)[rank].Log(),
                       absl::StrCat("rank ", rank, " of session \"s\" has lost the daemon")) > 0;
        },
        kLong))
        << (*resumes.members)[rank].Log();
  }
  resumes.daemon->Signal(SIGCONT);
  resumes.members->ExpectDone(1);
  EXPECT_THAT(resumes.daemon->Log(), Not(HasSubstr("was lost")));
}

}  // namespace
}  // namespace gradwire

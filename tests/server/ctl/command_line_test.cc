// What gradwirectl answers, as a process, to a command that it cannot carry out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/testing/process.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::ctl {
namespace {

using ::gradwire::testing::Process;
using ::gradwire::testing::TemporaryFolder;
using ::gradwire::testing::TestDaemon;
using ::testing::StartsWith;

struct Answer {
  int exit_code = -1;
  std::string text;
};

Answer Ctl(std::vector<std::string> words) {
  const TemporaryFolder folder;
  words.insert(words.begin(), GRADWIRE_CTL);
  const auto process = Process::Start(words, folder / "log");
  if (!process.ok()) return {.text = process.status().ToString()};
  const std::optional<int> status = (*process)->Wait(absl::Seconds(30));
  if (!status || !WIFEXITED(*status)) return {.text = "did not exit"};
  return {.exit_code = WEXITSTATUS(*status), .text = (*process)->Log()};
}

TEST(CommandLine, NamesTheCommandThatItDoesNotKnow) {
  const Answer answer = Ctl({"sessions"});
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_EQ(
      answer.text,
      "gradwirectl: no command \"sessions\"; allowed: status, why, session, health, version\n");
  EXPECT_EQ(Ctl({"session", "show"}).text,
            "session: no command \"show\"; allowed: get, export, import\n");
  EXPECT_EQ(Ctl({"session"}).text, "session: no command; allowed: get, export, import\n");
  EXPECT_THAT(Ctl({"session", "get"}).text, StartsWith("NAME is required"));
}

TEST(CommandLine, NamesTheSessionAndTheDaemonThatDoesNotKnowIt) {
  const TestDaemon daemon;
  const Answer answer = Ctl({"--address", daemon.address(), "session", "get", "nobody"});
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_EQ(answer.text,
            "gradwirectl: " + daemon.address() +
                ": session: the daemon has none named \"nobody\", running or recently ended\n");
}

}  // namespace
}  // namespace gradwire::ctl

// What programs make of the word they are started with, and of flags that they do not know.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/certificates.h"
#include "tests/testing/process.h"

namespace gradwire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing::TemporaryFolder;

struct Answer {
  int exit_code = -1;
  std::string text;
};

Answer RunProgram(const std::vector<std::string>& words) {
  const TemporaryFolder folder;
  const auto process = testing::Process::Start(words, folder / "log");
  if (!process.ok()) return {.text = process.status().ToString()};
  const std::optional<int> status = (*process)->Wait(absl::Seconds(60));
  if (!status || !WIFEXITED(*status)) return {.text = "did not exit: " + (*process)->Log()};
  return {.exit_code = WEXITSTATUS(*status), .text = (*process)->Log()};
}

// Found in PATH, a program only knows its bare name. A file of the working directory would be
// anybody's code.
TEST(CudaLibrary, BesideTheProgramCountsAndNotThatOfTheWorkingDirectory) {
  const TemporaryFolder programs;
  const TemporaryFolder work;
  std::filesystem::copy_file(GRADWIRE_DAEMON, programs / "gradwired");
  testing::ReplaceFile(programs / "libgradwire_cuda.so", "beside");
  testing::ReplaceFile(work / "libgradwire_cuda.so", "work");
  const Answer answer = RunProgram({"/bin/sh", "-c",
                                    "cd \"$1\" && PATH=\"$2\" exec gradwired --config= "
                                    "--listen 127.0.0.1:0 --http-listen off --reduce cuda:0",
                                    "sh", work.path(), programs.path()});
  EXPECT_EQ(answer.exit_code, 69);
  EXPECT_THAT(answer.text, AllOf(HasSubstr(programs / "libgradwire_cuda.so"),
                                 Not(HasSubstr(work.path())), HasSubstr("[GW609]")));
}

TEST(Daemon, NamesTheFlagThatWasMeant) {
  const auto first = [](const std::vector<std::string>& given) {
    std::vector<std::string> words = given;
    words.insert(words.begin(), GRADWIRE_DAEMON);
    const Answer answer = RunProgram(words);
    EXPECT_EQ(answer.exit_code, 2);
    return answer.text.substr(0, answer.text.find('\n'));
  };
  EXPECT_EQ(first({"--listn", "127.0.0.1:0"}),
            "gradwired: unknown option \"--listn\"; did you mean \"--listen\"? [GW601]");
  EXPECT_EQ(
      first({"--max-sesions=secret"}),
      "gradwired: unknown option \"--max-sesions\"; did you mean \"--max-sessions\"? [GW601]");
  EXPECT_EQ(first({"config", "show", "--orgin"}),
            "gradwired: unknown option \"--orgin\"; did you mean \"--origin\"? [GW601]");
  EXPECT_EQ(first({"--frobnicate"}), "gradwired: unknown option \"--frobnicate\" [GW601]");
  EXPECT_EQ(first({"a\nb"}), "gradwired: unexpected argument \"a\\u000ab\" [GW601]");
  EXPECT_THAT(first({"--listen"}), StartsWith("gradwired: --listen: "));
  EXPECT_THAT(first({"config"}), StartsWith("gradwired: "));
}

TEST(TestMember, SaysHowItIsUsed) {
  const Answer help = RunProgram({GRADWIRE_TEST_MEMBER, "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.text, StartsWith("usage: gradwire_test_member --address A"));
  EXPECT_EQ(RunProgram({GRADWIRE_TEST_MEMBER, "--address", "a"}).exit_code, 2);
  EXPECT_EQ(RunProgram({GRADWIRE_TEST_MEMBER, "--address", "a", "--session"}).exit_code, 2);
}

}  // namespace
}  // namespace gradwire

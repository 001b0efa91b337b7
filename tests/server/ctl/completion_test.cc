// What `gradwirectl completion` prints, used by the shells that this host has.
#include "server/ctl/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/server/ctl/ctl_process.h"

namespace gradwire::ctl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr int kNoShell = 77;

Answer Check(const std::string& shell) {
  return RunProgram({GRADWIRE_CHECK_COMPLETION, GRADWIRE_CTL, shell});
}

std::vector<std::string> Words(const std::string& line) {
  return absl::StrSplit(line, ' ', absl::SkipEmpty());
}

TEST(Completion, InBashGivesCommandsOptionsValuesAndPaths) {
  const Answer answer = Check("bash");
  ASSERT_EQ(answer.exit_code, 0) << answer.text;
  const std::vector<std::string> lines = absl::StrSplit(answer.text, '\n');
  ASSERT_EQ(lines.size(), 12U) << answer.text;
  EXPECT_EQ(lines[0], "complete -o filenames -F _gradwirectl gradwirectl");
  EXPECT_THAT(Words(lines[1]), UnorderedElementsAre("session", "sessions", "status"));
  EXPECT_THAT(Words(lines[2]), ::testing::IsSupersetOf({"get", "evict", "pause", "resume", "export",
                                                        "import", "--address", "--help"}));
  EXPECT_THAT(
      Words(lines[3]),
      UnorderedElementsAre("--address", "--for", "--help", "--output", "--reason", "--timeout",
                           "--tls-ca", "--tls-cert", "--tls-key", "--token-file", "--version"));
  EXPECT_THAT(Words(lines[4]), UnorderedElementsAre("table", "json", "yaml"));
  EXPECT_THAT(Words(lines[5]), ElementsAre("model.safetensors"));
  EXPECT_THAT(Words(lines[6]), ElementsAre("model.safetensors"));
  EXPECT_THAT(Words(lines[7]), ::testing::IsSupersetOf({"bash", "zsh", "fish"}));
  EXPECT_EQ(lines[8], "");  // any address
  EXPECT_THAT(Words(lines[9]), ::testing::Contains("bundle"));
  EXPECT_THAT(Words(lines[10]), ElementsAre("GW300", "GW301", "GW302", "GW303", "GW304", "GW305",
                                            "GW306", "GW307", "GW308", "GW309"));
}

class CompletionSyntax : public ::testing::TestWithParam<const char*> {};

TEST_P(CompletionSyntax, IsTheShells) {
  const Answer answer = Check(GetParam());
  if (answer.exit_code == kNoShell) GTEST_SKIP() << answer.text;
  EXPECT_EQ(answer.exit_code, 0) << answer.text;
  EXPECT_EQ(answer.text, "checked\n");
}

INSTANTIATE_TEST_SUITE_P(Others, CompletionSyntax, ::testing::Values("zsh", "fish"));

// A command that is added is completed, and no text of it ends a shell's quotes.
TEST(Completion, FollowsTheCommands) {
  CLI::App app("Does things.", "tool");
  std::string value;
  CLI::App* const added = app.add_subcommand("added", "Do one's own; $(thing): 'x'");
  added->add_option("--kind", value, "The kind")->check(CLI::IsMember({"a", "b"}));
  EXPECT_THAT(Completion(app, "bash"),
              AllOf(HasSubstr("' added') at+="), HasSubstr("' added') words='--help --kind'"),
                    HasSubstr("--kind)\n      mapfile -t COMPREPLY < <(compgen -W 'a b' -- ")));
  EXPECT_THAT(Completion(app, "zsh"),
              AllOf(HasSubstr("#compdef tool\n"),
                    HasSubstr("'added:Do one'\\''s own; $(thing): '\\''x'\\'''"),
                    HasSubstr("(--kind) compadd -- a b")));
  EXPECT_THAT(
      Completion(app, "fish"),
      AllOf(HasSubstr("complete -c tool -n 'not __fish_seen_subcommand_from added' -a added -d "),
            HasSubstr("complete -c tool -n '__fish_seen_subcommand_from added' -l kind -x -a 'a b' "
                      "-d 'The kind'")));
}

}  // namespace
}  // namespace gradwire::ctl

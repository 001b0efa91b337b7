// What `gradwirectl debug bundle` writes: unpacked and searched with Python's tarfile.
#include "server/ctl/bundle/bundle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/client.h"
#include "server/ctl/bundle/host_facts.h"
#include "tests/server/ctl/ctl_process.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::ctl {
namespace {

using ::gradwire::testing::TemporaryFolder;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kToken[] = "correct-horse-battery-staple";
constexpr char kFileToken[] = "another-long-random-text";
constexpr char kKey[] = "MC4CAQAwBQYDK2VwBCIEIHsecretsecretsecretsecret";

// Writes it, and returns what check_bundle.py says of it.
class DebugBundle : public ::testing::Test {
 protected:
  Answer Check(const std::vector<std::string>& options) {
    std::vector<std::string> words = {"debug", "bundle", file_};
    words.insert(words.end(), options.begin(), options.end());
    written_ = Ctl(words);
    return RunProgram(
        {"/usr/bin/python3", "-B", GRADWIRE_CHECK_BUNDLE, file_, kToken, kFileToken, kKey});
  }

  const TemporaryFolder folder_;
  const std::string file_ = folder_ / "bundle.tar.gz";
  Answer written_;
};

TEST_F(DebugBundle, HasAllPartsAndNoSecret) {
  TestDaemon daemon;
  daemon.server().SetConfigurationText(
      absl::StrCat("log:\n  level: \"", kToken, "\"  # as if a token had come here\n"));
  const auto client = Client::Join(
      {.address = daemon.address(),
       .session = "..",
       .rank = 0,
       .parameters = {{.name = "../../etc\n/passwd", .shape = {4}, .dtype = DType::kFloat32}}});
  ASSERT_TRUE(client.ok()) << client.status();
  std::ofstream(folder_ / "token") << kFileToken << "\n";
  std::ofstream(folder_ / "tls.key") << kKey << "\n";
  setenv("GRADWIRE_TOKEN", kToken, 1);
  setenv("GRADWIRE_TLS_KEY", kKey, 1);  // by mistake: not the path
  setenv("GRADWIRE_NODE_GROUP", "off", 1);
  const Answer checked = Check({"--address", daemon.address(), "--token-file", folder_ / "token",
                                "--tls-key", folder_ / "tls.key"});
  unsetenv("GRADWIRE_TOKEN");
  unsetenv("GRADWIRE_TLS_KEY");
  unsetenv("GRADWIRE_NODE_GROUP");
  EXPECT_EQ(written_.exit_code, 0) << written_.text;
  EXPECT_THAT(written_.text,
              AllOf(StartsWith("wrote " + file_), HasSubstr("Names of sessions, parameters"),
                    Not(HasSubstr("missing"))));
  EXPECT_EQ(checked.exit_code, 0) << checked.text;
  EXPECT_THAT(checked.text, StartsWith("README.txt\n"
                                       "daemon/addresses.txt\n"
                                       "daemon/configuration.yaml\n"
                                       "daemon/log.txt\n"
                                       "daemon/process.json\n"
                                       "environment.txt\n"
                                       "health.txt\n"
                                       "host.txt\n"
                                       "round-trip.txt\n"
                                       "server.json\n"
                                       "sessions.txt\n"
                                       "sessions/0.json\n"
                                       "versions.json\n"
                                       "why.txt\n"));
  EXPECT_THAT(checked.text, Not(HasSubstr("Missing")));
}

TEST_F(DebugBundle, IsWrittenWithoutADaemonToo) {
  const Answer checked = Check({"--address", "127.0.0.1:1", "--timeout", "2"});
  EXPECT_EQ(written_.exit_code, 0) << written_.text;
  EXPECT_THAT(written_.text, HasSubstr("missing: all that the daemon tells: no daemon answers at "
                                       "127.0.0.1:1"));
  EXPECT_THAT(checked.text, StartsWith("README.txt\nenvironment.txt\nhost.txt\nversions.json\n"));
  EXPECT_THAT(checked.text, HasSubstr("\nMissing:\n  all that the daemon tells: "));
}

TEST_F(DebugBundle, GoesToStandardOutputForContainers) {
  const Answer written = RunProgram(
      {"/bin/sh", "-c", "\"$1\" --address 127.0.0.1:1 --timeout 2 debug bundle - >\"$2\"", "sh",
       GRADWIRE_CTL, file_});
  EXPECT_EQ(written.exit_code, 0) << written.text;
  EXPECT_THAT(written.text, StartsWith("wrote -:\n"));  // to standard error
  const Answer checked = RunProgram({"/usr/bin/python3", "-B", GRADWIRE_CHECK_BUNDLE, file_});
  EXPECT_THAT(checked.text, StartsWith("README.txt\nenvironment.txt\nhost.txt\nversions.json\n"));
}

TEST_F(DebugBundle, SaysWhereItCannotBeWritten) {
  const Answer answer = Ctl({"--address", "127.0.0.1:1", "--timeout", "1", "debug", "bundle",
                             folder_ / "nowhere/x.tar.gz"});
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_THAT(answer.text, HasSubstr("nowhere/x.tar.gz: No such file or directory"));
}

TEST(HostFacts, NameTheHostAndItsLimits) {
  EXPECT_THAT(HostFacts(),
              AllOf(HasSubstr("uname: Linux "), HasSubstr("\nprocessors: "),
                    HasSubstr("\nvector instructions, best first: "),
                    HasSubstr("\nRLIMIT_NOFILE: "), HasSubstr("\nvm.max_map_count: ")));
}

TEST(HostFacts, ShowPathsButNoSecrets) {
  const TemporaryFolder folder;
  std::ofstream(folder / "token") << "x";
  setenv("GRADWIRE_TOKEN", (folder / "token").c_str(), 1);
  setenv("GRADWIRE_TOKEN_FILE", (folder / "token").c_str(), 1);
  setenv("GRADWIRE_SOME_PASSWORD", "hunter2hunter2", 1);
  setenv("GRADWIRE_ADDRESS", "a\nb", 1);
  const std::string facts = EnvironmentFacts();
  for (const char* name :
       {"GRADWIRE_TOKEN", "GRADWIRE_TOKEN_FILE", "GRADWIRE_SOME_PASSWORD", "GRADWIRE_ADDRESS"}) {
    unsetenv(name);
  }
  EXPECT_THAT(facts, AllOf(HasSubstr("GRADWIRE_TOKEN is set; its value is a secret\n"),
                           HasSubstr("GRADWIRE_TOKEN_FILE=" + folder.path() + "/token\n"),
                           HasSubstr("GRADWIRE_SOME_PASSWORD is set; its value is a secret\n"),
                           HasSubstr("GRADWIRE_ADDRESS=a\\u000ab\n")));
}

TEST(BundleName, IsTheTimeInUtc) {
  EXPECT_EQ(BundleName(absl::FromUnixSeconds(1'795'731'300)), "gradwire-debug-20261126T221500Z");
}

}  // namespace
}  // namespace gradwire::ctl

#include "server/daemon/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;

CommandLine Parse(std::vector<const char*> words) {
  // Whatever file this host has.
  words.insert(words.begin(), {"gradwired", "--config="});
  return ParseCommandLine(static_cast<int>(words.size()), words.data());
}

TEST(CommandLineTest, TakesTheTlsFiles) {
  const CommandLine line = Parse(
      {"--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "ca", "--listen", "0.0.0.0:0"});
  ASSERT_FALSE(line.exit);
  EXPECT_EQ(line.configuration.options.tls.cert, "c");
  EXPECT_EQ(line.configuration.options.tls.key, "k");
  EXPECT_EQ(line.configuration.options.tls.ca, "ca");
}

TEST(CommandLineTest, TakesFlags) {
  const CommandLine line = Parse({"--listen",          "127.0.0.1:0", "--listen",       "unix:/x",
                                  "--max-connections", "7",           "--max-sessions", "3",
                                  "--memory-limit",    "1GiB",        "--chunk-bytes",  "64KiB",
                                  "--window-chunks",   "2",           "--open-buckets", "1",
                                  "--drain-timeout",   "1500ms",      "--log-format",   "json"});
  ASSERT_FALSE(line.exit);
  EXPECT_THAT(line.configuration.options.listen, ElementsAre("127.0.0.1:0", "unix:/x"));
  EXPECT_EQ(line.configuration.options.max_connections, 7);
  EXPECT_EQ(line.configuration.options.max_sessions, 3);
  EXPECT_EQ(line.configuration.options.memory_limit, "1GiB");
  EXPECT_EQ(line.configuration.options.chunk_bytes, 65536u);
  EXPECT_EQ(line.configuration.options.window_chunks, 2u);
  EXPECT_EQ(line.configuration.options.open_buckets, 1u);
  EXPECT_EQ(line.configuration.options.drain_timeout, absl::Milliseconds(1500));
  EXPECT_EQ(line.configuration.options.log_format, "json");
}

TEST(CommandLineTest, TakesTheEnvironmentWhereTheFlagIsMissing) {
  setenv("GRADWIRE_LISTEN", "127.0.0.1:0,unix:/y", 1);
  setenv("GRADWIRE_MAX_SESSIONS", "11", 1);
  const CommandLine line = Parse({});
  const CommandLine flagged = Parse({"--max-sessions", "12"});
  unsetenv("GRADWIRE_LISTEN");
  unsetenv("GRADWIRE_MAX_SESSIONS");
  ASSERT_FALSE(line.exit);
  EXPECT_THAT(line.configuration.options.listen, ElementsAre("127.0.0.1:0", "unix:/y"));
  EXPECT_EQ(line.configuration.options.max_sessions, 11);
  EXPECT_EQ(flagged.configuration.options.max_sessions, 12);
}

TEST(CommandLineTest, UsageErrorsExitWith2) {
  const std::vector<std::vector<const char*>> wrong = {{"--bogus"},
                                                       {"stray"},
                                                       {"--max-sessions", "many"},
                                                       {"--max-sessions", "0"},
                                                       {"--chunk-bytes", "7"},
                                                       {"--drain-timeout", "soon"},
                                                       {"--listen", "0.0.0.0:0"},
                                                       {"--listen", "nowhere"},
                                                       {"--http-listen", "0.0.0.0:0"},
                                                       {"--log-level", "loud"}};
  for (const auto& words : wrong) {
    const CommandLine line = Parse(words);
    EXPECT_TRUE(line.exit) << words[0];
    EXPECT_EQ(line.exit_code, 2) << words[0];
  }
}

TEST(CommandLineTest, HelpAndVersionExitWith0) {
  for (const char* word : {"--help", "--version"}) {
    const CommandLine line = Parse({word});
    EXPECT_TRUE(line.exit);
    EXPECT_EQ(line.exit_code, 0);
  }
}

}  // namespace
}  // namespace gradwire::server

#include "server/daemon/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CommandLine Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "gradwired");
  return ParseCommandLine(static_cast<int>(words.size()), words.data());
}

std::string Problem(const ServerOptions& options) {
  return std::string(options.Validate().message());
}

TEST(ServerOptionsTest, DefaultsAreValid) { EXPECT_EQ(Problem({}), ""); }

TEST(ServerOptionsTest, NamesTheFieldTheValueAndWhatIsAllowed) {
  EXPECT_THAT(Problem({.max_connections = 0}), HasSubstr("max_connections is 0; allowed are 1 to"));
  EXPECT_THAT(Problem({.max_sessions = -3}), HasSubstr("max_sessions is -3"));
  EXPECT_THAT(Problem({.memory_limit = "lots"}), HasSubstr("\"lots\" is not an amount of memory"));
  EXPECT_THAT(Problem({.chunk_bytes = 100}),
              HasSubstr("chunk_bytes is 100; allowed are multiples of 8"));
  EXPECT_THAT(Problem({.window_chunks = 0}), HasSubstr("window_chunks is 0"));
  EXPECT_THAT(Problem({.open_buckets = 0}), HasSubstr("open_buckets is 0"));
  EXPECT_THAT(Problem({.drain_timeout = absl::ZeroDuration()}), HasSubstr("drain_timeout is 0"));
  EXPECT_THAT(Problem({.log_level = "loud"}),
              HasSubstr("log_level is \"loud\"; allowed are debug"));
  EXPECT_THAT(Problem({.log_format = "xml"}), HasSubstr("log_format is \"xml\""));
  EXPECT_THAT(Problem({.listen = {}}), HasSubstr("listen is empty"));
}

TEST(ServerOptionsTest, RefusesAddressesThatOthersCanReachUnlessInsecure) {
  for (const char* address : {"0.0.0.0:0", "[::]:0", "192.0.2.1:29610"}) {
    const absl::Status refused = ServerOptions{.listen = {address}}.Validate();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << address;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--insecure"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--tls-cert"));
    EXPECT_TRUE((ServerOptions{.listen = {address}, .insecure = true}.Validate().ok())) << address;
    const tls::Files files = {.cert = "tls.crt", .key = "tls.key"};
    EXPECT_TRUE((ServerOptions{.listen = {address}, .tls = files}.Validate().ok())) << address;
  }
  for (const char* address : {"127.0.0.1:0", "127.3.2.1:0", "[::1]:0", "localhost:0", "unix:/x"}) {
    EXPECT_TRUE((ServerOptions{.listen = {address}}.Validate().ok())) << address;
  }
}

TEST(ServerOptionsTest, StatusPagesAreForThisHostUnlessInsecure) {
  for (const char* address : {"off", "auto", "127.0.0.1:0", "[::1]:0"}) {
    EXPECT_EQ(Problem({.http_listen = address}), "") << address;
  }
  // TLS is for members; it does not make these pages private.
  const tls::Files files = {.cert = "tls.crt", .key = "tls.key"};
  EXPECT_THAT(Problem({.insecure = true, .tls = files, .http_listen = "0.0.0.0:0"}),
              HasSubstr("--insecure-http"));
  EXPECT_EQ(Problem({.http_listen = "0.0.0.0:0", .insecure_http = true}), "");
  EXPECT_THAT(Problem({.http_listen = "unix:/x"}),
              HasSubstr("allowed are host:port, off and auto"));
  EXPECT_THAT(Problem({.http_listen = "nowhere"}), HasSubstr("nowhere"));
}

TEST(ServerOptionsTest, OneBadAddressAmongGoodOnesIsRefused) {
  EXPECT_THAT(Problem({.listen = {"127.0.0.1:0", "0.0.0.0:1"}}), HasSubstr("0.0.0.0:1"));
}

TEST(ServerOptionsTest, ACertificateHasItsKey) {
  EXPECT_EQ(Problem({.tls = {.cert = "c"}}),
            "tls_key is empty, and tls_cert is not; allowed: both or neither");
  EXPECT_EQ(Problem({.tls = {.key = "k"}}),
            "tls_cert is empty, and tls_key is not; allowed: both or neither");
  EXPECT_EQ(Problem({.tls = {.ca = "ca"}}),
            "tls_client_ca is set, and tls_cert is not; allowed: with tls_cert and tls_key");
}

TEST(CommandLineTest, TakesTheTlsFiles) {
  const CommandLine line = Parse(
      {"--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "ca", "--listen", "0.0.0.0:0"});
  ASSERT_FALSE(line.exit);
  EXPECT_EQ(line.options.tls.cert, "c");
  EXPECT_EQ(line.options.tls.key, "k");
  EXPECT_EQ(line.options.tls.ca, "ca");
}

TEST(CommandLineTest, TakesFlags) {
  const CommandLine line = Parse({"--listen",          "127.0.0.1:0", "--listen",       "unix:/x",
                                  "--max-connections", "7",           "--max-sessions", "3",
                                  "--memory-limit",    "1GiB",        "--chunk-bytes",  "64KiB",
                                  "--window-chunks",   "2",           "--open-buckets", "1",
                                  "--drain-timeout",   "1500ms",      "--log-format",   "json"});
  ASSERT_FALSE(line.exit);
  EXPECT_THAT(line.options.listen, ElementsAre("127.0.0.1:0", "unix:/x"));
  EXPECT_EQ(line.options.max_connections, 7);
  EXPECT_EQ(line.options.max_sessions, 3);
  EXPECT_EQ(line.options.memory_limit, "1GiB");
  EXPECT_EQ(line.options.chunk_bytes, 65536u);
  EXPECT_EQ(line.options.window_chunks, 2u);
  EXPECT_EQ(line.options.open_buckets, 1u);
  EXPECT_EQ(line.options.drain_timeout, absl::Milliseconds(1500));
  EXPECT_EQ(line.options.log_format, "json");
}

TEST(CommandLineTest, TakesTheEnvironmentWhereTheFlagIsMissing) {
  setenv("GRADWIRE_LISTEN", "127.0.0.1:0,unix:/y", 1);
  setenv("GRADWIRE_MAX_SESSIONS", "11", 1);
  const CommandLine line = Parse({});
  const CommandLine flagged = Parse({"--max-sessions", "12"});
  unsetenv("GRADWIRE_LISTEN");
  unsetenv("GRADWIRE_MAX_SESSIONS");
  ASSERT_FALSE(line.exit);
  EXPECT_THAT(line.options.listen, ElementsAre("127.0.0.1:0", "unix:/y"));
  EXPECT_EQ(line.options.max_sessions, 11);
  EXPECT_EQ(flagged.options.max_sessions, 12);
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

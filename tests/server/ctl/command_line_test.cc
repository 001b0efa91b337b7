// What gradwirectl answers, as a process, to a command that it cannot carry out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gradwire/client.h"
#include "server/daemon/server.h"
#include "tests/server/ctl/ctl_process.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::ctl {
namespace {

using ::gradwire::testing::TestDaemon;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(CommandLine, NamesTheCommandThatItDoesNotKnow) {
  const Answer answer = Ctl({"session-list"});
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_EQ(
      answer.text,
      "gradwirectl: no command \"session-list\"; allowed: status, sessions, why, session, "
      "trace, health, doctor, bench, plan, replay, debug, completion, explain, version [GW701]\n");
  EXPECT_EQ(
      Ctl({"session", "show"}).text,
      "gradwirectl: session: no command \"show\"; allowed: get, ledger, digest, evict, pause, "
      "resume, export, import [GW701]\n");
  EXPECT_EQ(Ctl({"session"}).text,
            "gradwirectl: session: no command; allowed: get, ledger, digest, evict, pause, resume, "
            "export, import [GW701]\n");
}

TEST(CommandLine, BeginsEachErrorWithTheToolAndNamesTheOptionThatWasMeant) {
  const auto first = [](const std::vector<std::string>& words) {
    const Answer answer = Ctl(words);
    EXPECT_EQ(answer.exit_code, 2) << answer.text;
    return answer.text.substr(0, answer.text.find('\n'));
  };
  EXPECT_EQ(first({"session", "get"}), "gradwirectl: session get: NAME is required [GW701]");
  EXPECT_EQ(first({"--adress", "x", "status"}),
            "gradwirectl: unknown option \"--adress\"; did you mean \"--address\"? [GW701]");
  EXPECT_EQ(first({"trace", "s", "--step=3"}),
            "gradwirectl: unknown option \"--step\"; did you mean \"--steps\"? [GW701]");
  EXPECT_EQ(first({"--frobnicate"}), "gradwirectl: unknown option \"--frobnicate\" [GW701]");
  EXPECT_EQ(first({"status", "a\nb"}), "gradwirectl: unexpected argument \"a\\u000ab\" [GW701]");
  EXPECT_THAT(first({"trace", "s", "--steps"}), StartsWith("gradwirectl: --steps: "));
  EXPECT_THAT(first({"trace", "s", "--steps", "0"}), StartsWith("gradwirectl: --steps: "));
  for (const char* command : {"evict", "pause"}) {
    EXPECT_EQ(first({"session", command, "s", "--reason", "a\nb"}),
              "gradwirectl: --reason: \"a\\u000ab\" has control characters; allowed is one line "
              "of text [GW701]");
  }
}

TEST(CommandLine, RefusesWhatIsNoAddress) {
  for (const std::string address :
       {"127.0.0.1", "http://127.0.0.1:29610", "localhost:", ":29610", "localhost:0",
        "localhost:65536", "localhost:grpc", "::1", "a/b:1"}) {
    const Answer answer = Ctl({"--address", address, "status"});
    EXPECT_EQ(answer.exit_code, 2) << address;
    EXPECT_THAT(answer.text,
                StartsWith("gradwirectl: address is \"" + address +
                           "\"; allowed are host:port, such as 127.0.0.1:29610 or [::1]:29610, and "
                           "unix:/path [GW701]\n"));
  }
  EXPECT_EQ(Ctl({"--address", "127.0.0.1", "explain", "GW101"}).exit_code, 0);
}

// A daemon on TCP, since the test daemon has a unix socket only.
TEST(CommandLine, TakesGrpcsNotationAndSaysThatAPortSpeaksHttp) {
  const auto daemon =
      server::Server::Start({.listen = {"127.0.0.1:0"}, .http_listen = "127.0.0.1:0"});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  for (const char* scheme : {"", "ipv4:", "dns:///"}) {
    const Answer answer = Ctl({"--address", scheme + (*daemon)->addresses()[0], "health"});
    EXPECT_EQ(answer.exit_code, 0) << answer.text;
  }
  const Answer answer = Ctl({"--address", (*daemon)->http_addresses().at(0), "status"});
  EXPECT_EQ(answer.exit_code, 69);
  EXPECT_THAT(answer.text, HasSubstr("; this looks like an HTTP port, "));
}

TEST(CommandLine, NamesTheSessionAndTheDaemonThatDoesNotKnowIt) {
  const TestDaemon daemon;
  const Answer answer = Ctl({"--address", daemon.address(), "session", "get", "nobody"});
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_EQ(
      answer.text,
      "gradwirectl: " + daemon.address() +
          ": session: the daemon has none named \"nobody\", running or recently ended [GW703]\n"
          "Run gradwirectl explain GW703 for what to do.\n");
}

TEST(Evict, EndsTheSessionWithItsReason) {
  const TestDaemon daemon;
  ClientOptions options{.address = daemon.address(),
                        .session = "unwanted",
                        .rank = 0,
                        .parameters = {{.name = "w", .shape = {4}, .dtype = DType::kFloat32}}};
  const auto client = Client::Join(options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_THAT(Ctl({"--address", daemon.address(), "sessions"}).text,
              HasSubstr("\nunwanted  running"));
  const Answer answer = Ctl({"--address", daemon.address(), "session", "evict", "unwanted",
                             "--reason", "the machine is needed"});
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.text, "ended session unwanted\n");
  EXPECT_THAT((*client)->Barrier().message(),
              HasSubstr("an operator ended the session: the machine is needed [GW306]"));
  const Answer again = Ctl({"--address", daemon.address(), "session", "evict", "nobody"});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.text, HasSubstr("the daemon has none named \"nobody\""));
}

TEST(Output, IsYamlToo) {
  const TestDaemon daemon;
  const Answer answer = Ctl({"--address", daemon.address(), "-o", "yaml", "status"});
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_THAT(answer.text, StartsWith("server:\n  version: \"" GRADWIRE_VERSION "\"\n"));
  EXPECT_THAT(answer.text, HasSubstr("\nsessions: []\n"));
}

TEST(Output, IsADocumentForEachCommandThatReads) {
  const TestDaemon daemon;
  const auto ask = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"--address", daemon.address()});
    return Ctl(words);
  };
  EXPECT_EQ(ask({"-o", "json", "why"}).text, "[]\n");
  EXPECT_EQ(ask({"-o", "yaml", "health"}).text, "serving: true\n");
  EXPECT_EQ(nlohmann::json::parse(ask({"-o", "json", "version"}).text).at("gradwired"),
            GRADWIRE_VERSION);
  EXPECT_EQ(ask({"-o", "json", "sessions"}).text, "[]\n");
  const Answer nobody =
      Ctl({"--address", "127.0.0.1:1", "--timeout", "2", "-o", "json", "version"});
  EXPECT_EQ(nobody.exit_code, 0);
  EXPECT_TRUE(nlohmann::json::parse(nobody.text).at("gradwired").is_null());
  for (const char* command : {"why", "status", "sessions", "health"}) {
    const Answer answer =
        Ctl({"--address", "127.0.0.1:1", "--timeout", "2", "-o", "json", command});
    EXPECT_EQ(answer.exit_code, 69) << command << ": " << answer.text;
  }
}

TEST(Bench, MeasuresEachHookAndLeavesNoSession) {
  const TestDaemon daemon;
  const Answer answer = Ctl({"--address", daemon.address(), "-o", "json", "bench", "--shapes",
                             "200x100,7", "--members", "3", "--steps", "5"});
  ASSERT_EQ(answer.exit_code, 0) << answer.text;
  const auto document = nlohmann::json::parse(answer.text);
  const nlohmann::json& results = document.at("results");
  ASSERT_EQ(results.size(), 3U);
  EXPECT_EQ(results[0].at("hook"), "no");
  EXPECT_EQ(results[0].at("sent_bytes"), 4 * (200 * 100 + 7));
  EXPECT_EQ(results[1].at("sent_bytes"), 2 * (200 * 100 + 7));
  EXPECT_EQ(results[2].at("sent_bytes"), 4 * (200 + 100 + 7));  // rank 1
  EXPECT_GT(results[2].at("step_seconds"), 0);
  EXPECT_THAT(Ctl({"--address", daemon.address(), "why"}).text,
              StartsWith("No session is running"));
}

TEST(Doctor, ChecksTheWayAndPredictsEachHook) {
  const TestDaemon daemon;
  const std::vector<std::string> words = {
      "--address", daemon.address(), "-o",      "json", "doctor",
      "--shapes",  "200x100,7",      "--hooks", "no",   "bf16"};
  const Answer answer = CtlOutput(words);
  ASSERT_EQ(answer.exit_code, 0) << answer.text;
  const auto document = nlohmann::json::parse(answer.text);
  std::vector<std::string> checks;
  for (const nlohmann::json& check : document.at("checks")) {
    EXPECT_EQ(check.at("result"), "ok") << check;
    checks.push_back(check.at("check"));
  }
  EXPECT_THAT(checks, ElementsAre("address", "tls", "versions", "clock", "training", "round trip",
                                  "bandwidth"));
  EXPECT_GT(document.at("link").at("bytes_per_second"), 1e6);
  EXPECT_EQ(document.at("predictions").at(1).at("bytes"), 2 * (200 * 100 + 7));
  // What is measured is said meanwhile, on standard error.
  EXPECT_THAT(
      Ctl(words).text,
      ContainsRegex(
          "gradwirectl: connecting to [^\n]* \\.\\.\\.\ngradwirectl: measuring round trip and "
          "bandwidth with 2 members \\.\\.\\.\ngradwirectl: measuring what hook no "));
}

TEST(Doctor, SaysWhatIsWrong) {
  const Answer nobody = CtlOutput({"--address", "127.0.0.1:1", "--timeout", "2", "doctor"});
  EXPECT_EQ(nobody.exit_code, 69);
  EXPECT_THAT(nobody.text, StartsWith("FAIL  address "));
  const Answer model = Ctl({"doctor", "--model", "vgg"});
  EXPECT_EQ(model.exit_code, 2);
  EXPECT_EQ(
      model.text,
      "gradwirectl: model: there is none named \"vgg\"; allowed: gpt2, mlp, resnet18 [GW701]\n"
      "Run gradwirectl explain GW701 for what to do.\n");
  EXPECT_EQ(Ctl({"bench", "--hooks", "fp17"}).exit_code, 2);
  EXPECT_EQ(Ctl({"bench", "--members", "65"}).exit_code, 2);
}

}  // namespace
}  // namespace gradwire::ctl

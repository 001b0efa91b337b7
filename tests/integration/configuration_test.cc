// gradwired's file as users meet it: the commands that check and show it, and SIGHUP.
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/ctl/calls.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::Process;
using ::gradwire::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

struct Answer {
  int exit_code = -1;
  std::string text;
};

class ConfigurationTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) {
    // As editors and Kubernetes do it: there is never half a file.
    const std::string fresh = path_ + ".new";
    std::ofstream(fresh) << text;
    std::filesystem::rename(fresh, path_);
  }

  Answer Run(std::vector<std::string> words) {
    words.insert(words.begin(), GRADWIRE_DAEMON);
    const auto process = Process::Start(words, folder_ / "answer");
    if (!process.ok()) return {.text = process.status().ToString()};
    const std::optional<int> status = (*process)->Wait(absl::Seconds(30));
    if (!status || !WIFEXITED(*status)) return {.text = "did not exit"};
    return {.exit_code = WEXITSTATUS(*status), .text = (*process)->Log()};
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "gradwired.yaml";
  const std::string address_ = absl::StrCat("unix:", folder_ / "socket");
};

TEST_F(ConfigurationTest, CheckTellsOneGoodFileFromABadOne) {
  Write("max_sessions: 3\n");
  const Answer good = Run({"config", "check", path_});
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(good.text, path_ + ": ok\n");
  EXPECT_EQ(Run({"--config", path_, "config", "check"}).text, path_ + ": ok\n");

  Write("log:\n  levle: info\nmax_sessions: 0\n");
  const Answer bad = Run({"config", "check", path_});
  EXPECT_EQ(bad.exit_code, 78);
  EXPECT_EQ(bad.text,
            absl::StrCat("gradwired: ", path_,
                         ":2:3: unknown key \"log.levle\"; did you mean \"log.level\"? [GW604]\n",
                         "gradwired: ", path_,
                         ":3:15: max_sessions is 0; allowed are 1 to 1000000 [GW602]\n"));
  // A daemon does not start with it, and says the same.
  const Answer served = Run({"serve", "--config", path_});
  EXPECT_EQ(served.exit_code, 78);
  EXPECT_EQ(served.text, bad.text);
}

TEST_F(ConfigurationTest, CheckNeedsAFile) {
  const Answer none = Run({"config", "check", "--config="});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.text, StartsWith("gradwired: there is no file to check"));
  EXPECT_EQ(Run({"config", "check", folder_ / "missing"}).exit_code, 78);
  EXPECT_EQ(Run({"config"}).exit_code, 2);
  EXPECT_EQ(Run({"config", "change"}).exit_code, 2);
  EXPECT_EQ(Run({"--config=", "--max-sessions=0"}).exit_code, 2);
}

TEST_F(ConfigurationTest, TheSampleIsValidAndHasEachKeyOfTheSchema) {
  EXPECT_EQ(Run({"config", "check", GRADWIRE_SAMPLE_CONFIG}).text,
            absl::StrCat(GRADWIRE_SAMPLE_CONFIG, ": ok\n"));
  const Answer printed = Run({"config", "schema"});
  EXPECT_EQ(printed.exit_code, 0);
  const Json schema = Json::parse(printed.text);
  // Each key of the schema is at the beginning of a line of the sample, and no other is.
  std::vector<std::string> in_schema;
  for (const auto& [key, property] : schema.at("properties").items()) {
    in_schema.push_back(absl::StrCat(key, ":"));
    if (!property.contains("properties")) continue;
    for (const auto& [inner, type] : property.at("properties").items()) {
      in_schema.push_back(absl::StrCat("  ", inner, ":"));
    }
  }
  std::vector<std::string> in_sample;
  std::ifstream sample(GRADWIRE_SAMPLE_CONFIG);
  for (std::string line; std::getline(sample, line);) {
    const std::size_t colon = line.find(':');
    const std::size_t first = line.find_first_not_of(' ');
    if (colon == std::string::npos || line[first] == '#' || line[first] == '-') continue;
    in_sample.push_back(line.substr(0, colon + 1));
  }
  EXPECT_THAT(in_sample, ::testing::UnorderedElementsAreArray(in_schema));
}

TEST_F(ConfigurationTest, ShowPrintsTheValuesAndTheirOrigins) {
  Write("max_sessions: 3\nhttp: {listen: 'off'}\n");
  const Answer yaml =
      Run({"config", "show", "--origin", "--config", path_, "--max-connections", "9"});
  EXPECT_EQ(yaml.exit_code, 0);
  EXPECT_THAT(yaml.text, AllOf(HasSubstr(absl::StrCat("\nmax_sessions: 3  # ", path_, ":1\n")),
                               HasSubstr(absl::StrCat("\n  listen: \"off\"  # ", path_, ":2\n")),
                               HasSubstr("\nmax_connections: 9  # --max-connections\n"),
                               HasSubstr("\nopen_buckets: 4  # default\n")));
  const Json json = Json::parse(
      Run({"config", "show", "-o", "json", "--config", path_, "--max-connections", "9"}).text);
  EXPECT_EQ(json.at("max_sessions"), 3);
  EXPECT_EQ(json.at("http").at("listen"), "off");
  EXPECT_EQ(json.at("max_connections"), 9);
  const Json origins =
      Json::parse(Run({"config", "show", "--origin", "-o", "json", "--config", path_}).text);
  EXPECT_EQ(origins.at("http").at("listen").at("origin"), path_ + ":2");
  // Without a file there is what a daemon does by itself.
  EXPECT_EQ(Json::parse(Run({"config", "show", "-o", "json", "--config="}).text).at("http"),
            Json({{"listen", "auto"}, {"insecure", false}}));
}

TEST_F(ConfigurationTest, SighupAppliesWhatCanChangeAndNamesTheRest) {
  const std::string fixed = absl::StrCat("listen: ", address_, "\nhttp: {listen: 'off'}\n");
  Write(fixed);
  const auto daemon = *Process::Start({GRADWIRE_DAEMON, "--config", path_}, folder_ / "log");
  const auto logged = [&](const std::string& text) {
    return Eventually([&] { return daemon->Log().find(text) != std::string::npos; });
  };
  ASSERT_TRUE(logged("  grpc  unix:")) << daemon->Log();

  Write(absl::StrCat(fixed, "log: {level: debug}\nmax_sessions: 5\ndrain_timeout: 7s\n",
                     "open_buckets: 2\n"));
  daemon->Signal(SIGHUP);
  ASSERT_TRUE(logged("configuration reloaded: 3 changed, 1 need a restart")) << daemon->Log();
  EXPECT_THAT(daemon->Log(), AllOf(HasSubstr("info log.level: info -> debug\n"),
                                   HasSubstr("info max_sessions: 256 -> 5\n"),
                                   HasSubstr("info drain_timeout: 30s -> 7s\n"),
                                   HasSubstr("warning open_buckets: 4 -> 2 needs a restart\n")));

  Write(absl::StrCat(fixed, "max_sesions: 6\n"));
  daemon->Signal(SIGHUP);
  ASSERT_TRUE(logged(absl::StrCat("error configuration not reloaded: ", path_,
                                  ":3:1: unknown key \"max_sesions\"; did you mean")))
      << daemon->Log();

  // What the bad file did not change is still there: "debug", and what it says is in the log.
  Write(absl::StrCat(fixed, "log: {level: error, format: json}\nmax_sessions: 5\n",
                     "drain_timeout: 7s\n"));
  daemon->Signal(SIGHUP);
  ASSERT_TRUE(logged("configuration reloaded: 2 changed, 0 need a restart")) << daemon->Log();
  EXPECT_THAT(daemon->Log(), HasSubstr("\"message\":\"log.level: debug -> error\"}\n"));

  Write(absl::StrCat(fixed, "max_sessions: 5\ndrain_timeout: 8s\n"));
  daemon->Signal(SIGHUP);
  ASSERT_TRUE(logged("configuration reloaded: 3 changed, 0 need a restart")) << daemon->Log();
  daemon->Signal(SIGTERM);
  const std::optional<int> status = daemon->Wait(absl::Seconds(30));
  ASSERT_TRUE(status && WIFEXITED(*status)) << daemon->Log();
  EXPECT_EQ(WEXITSTATUS(*status), 0);
  EXPECT_THAT(daemon->Log(), HasSubstr("info draining: 0 session(s) may take 8s to finish\n"));
}

TEST_F(ConfigurationTest, QuotasAndTheAuditLogFollowSighup) {
  const std::string audit = folder_ / "audit.log";
  const std::string fixed =
      absl::StrCat("listen: ", address_, "\nhttp: {listen: 'off'}\naudit: {log: ", audit, "}\n");
  Write(fixed);
  const auto daemon = *Process::Start({GRADWIRE_DAEMON, "--config", path_}, folder_ / "log");
  const auto logged = [&](const std::string& text) {
    return Eventually([&] { return daemon->Log().find(text) != std::string::npos; });
  };
  ASSERT_TRUE(logged("  grpc  unix:")) << daemon->Log();
  Write(absl::StrCat(fixed, "quota: {identity: 'sessions=0'}\n"));
  std::filesystem::rename(audit, audit + ".1");
  daemon->Signal(SIGHUP);
  ASSERT_TRUE(logged(
      "quota.identity is \"sessions=0\", which is not valid: sessions is \"0\"; allowed are"))
      << daemon->Log();
  // The log is opened anew after the event, whatever came of it.
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(audit); }));
  Write(absl::StrCat(fixed, "quota: {identity: 'sessions=2', session: 'members=8'}\n"));
  daemon->Signal(SIGHUP);
  ASSERT_TRUE(logged("info quota.identity: \"\" -> \"sessions=2\"\n")) << daemon->Log();
  ASSERT_TRUE(logged("info quota.session: \"\" -> \"members=8\"\n")) << daemon->Log();
  daemon->Signal(SIGTERM);
  ASSERT_TRUE(daemon->Wait(absl::Seconds(30)).has_value());
  const auto events = [](const std::string& path) {
    std::vector<std::string> all;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      all.push_back(absl::StrCat(json.at("event").get<std::string>(), " ",
                                 json.at("outcome").get<std::string>()));
    }
    return all;
  };
  EXPECT_THAT(events(audit + ".1"),
              ElementsAre("daemon_started ok", "configuration_reloaded refused"));
  EXPECT_THAT(events(audit),
              ElementsAre("configuration_reloaded ok", "drain_begun ok", "daemon_stopped ok"));
}

TEST_F(ConfigurationTest, AnAuditLogThatCannotBeOpenedEndsTheStart) {
  const Answer answer =
      Run({"--listen", address_, "--http-listen=off", "--audit-log", folder_ / "no" + "/file"});
  EXPECT_EQ(answer.exit_code, 69);
  EXPECT_THAT(answer.text, HasSubstr("cannot be opened for writing: No such file"));
  Write(absl::StrCat("audit: {log: ", folder_ / "no" + "/file", "}\n"));
  const Answer checked = Run({"config", "check", path_});
  EXPECT_EQ(checked.exit_code, 69);
  EXPECT_EQ(checked.text, answer.text);
}

// What a bug report says of a daemon: the values that hold, also after SIGHUP, and the log.
TEST_F(ConfigurationTest, DiagnosticsShowWhatHoldsAndTheLog) {
  std::ofstream(folder_ / "tokens") << "ops operator * correct-horse-battery-staple\n";
  const std::string fixed = absl::StrCat(
      "listen: ", address_, "\nhttp: {listen: 'off'}\ntokens: ", folder_ / "tokens", "\n");
  Write(fixed);
  const auto daemon = *Process::Start(
      {GRADWIRE_DAEMON, "--config", path_, "--max-connections", "9"}, folder_ / "log");
  ASSERT_TRUE(Eventually([&] { return daemon->Log().find("  grpc  ") != std::string::npos; }));
  Write(absl::StrCat(fixed, "max_sessions: 5\nopen_buckets: 2\n"));
  daemon->Signal(SIGHUP);
  const ctl::Target target{.address = address_, .timeout = absl::Seconds(10)};
  v1::GetDiagnosticsResponse told;
  ASSERT_TRUE(Eventually([&] {
    const auto answer = ctl::GetDiagnostics(target);
    if (answer.ok()) told = *answer;
    return absl::StrContains(told.configuration(), "max_sessions: 5");
  })) << told.configuration();
  const std::string& shown = told.configuration();
  EXPECT_THAT(shown, HasSubstr(absl::StrCat("\nmax_sessions: 5  # ", path_, ":4\n")));
  EXPECT_THAT(shown, HasSubstr("\nmax_connections: 9  # --max-connections\n"));
  EXPECT_THAT(shown, HasSubstr("\nopen_buckets: 4  # default\n"));  // until a restart
  EXPECT_THAT(shown, HasSubstr(absl::StrCat("\ntokens: \"", folder_ / "tokens", "\"  # ")));
  EXPECT_THAT(told.DebugString(), Not(HasSubstr("correct-horse")));
  EXPECT_EQ(told.addresses(0), address_);
  EXPECT_EQ(told.http_addresses_size(), 0);
  EXPECT_GT(told.process().resident_bytes(), 1U << 20);
  ASSERT_GT(told.log_size(), 0);
  EXPECT_THAT(told.log(0), HasSubstr(absl::StrCat("info listening on ", address_)));
  EXPECT_THAT(daemon->Log(), HasSubstr(told.log(told.log_size() - 1)));
}

TEST_F(ConfigurationTest, AFlagIsNotReloaded) {
  Write("max_sessions: 3\nhttp: {listen: 'off'}\n");
  const auto daemon = *Process::Start(
      {GRADWIRE_DAEMON, "serve", "--config", path_, "--listen", address_, "--max-sessions=9"},
      folder_ / "log");
  ASSERT_TRUE(Eventually([&] { return daemon->Log().find("  grpc  ") != std::string::npos; }));
  Write("max_sessions: 4\nhttp: {listen: 'off'}\n");
  daemon->Signal(SIGHUP);
  ASSERT_TRUE(Eventually([&] {
    return daemon->Log().find("configuration reloaded: 0 changed, 0") != std::string::npos;
  })) << daemon->Log();
  EXPECT_THAT(daemon->Log(), Not(HasSubstr("max_sessions")));
}

}  // namespace
}  // namespace gradwire

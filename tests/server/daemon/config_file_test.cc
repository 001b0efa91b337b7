#include "server/daemon/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gradwire::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The values that a text sets, in its order: "KEY=WORD,WORD@LINE:COLUMN".
std::vector<std::string> Values(const std::string& text) {
  const ConfigFile file = ParseConfig(text, "f");
  EXPECT_THAT(file.problems, IsEmpty());
  std::vector<std::string> values;
  for (const FileValue& value : file.values) {
    std::string words;
    for (const std::string& word : value.words) {
      absl::StrAppend(&words, words.empty() ? "" : ",", word);
    }
    values.push_back(
        absl::StrCat(value.setting->key, "=", words, "@", value.line, ":", value.column));
  }
  return values;
}

// The only problem of a text. Then none of its values count.
std::string Problem(const std::string& text) {
  const ConfigFile file = ParseConfig(text, "f");
  EXPECT_THAT(file.values, IsEmpty());
  EXPECT_THAT(file.problems, SizeIs(1)) << text;
  return file.problems.empty() ? "" : file.problems.front();
}

TEST(ConfigFileTest, TakesValuesWithTheirPlaces) {
  EXPECT_THAT(
      Values("version: 1\n"
             "max_sessions: 7\n"
             "log: {level: debug}\n"
             "http:\n"
             "  listen: \"off\"\n"
             "chunk_bytes: 64KiB\n"
             "drain_timeout: 1m30s\n"
             "insecure: true\n"),
      ElementsAre("max_sessions=7@2:15", "log.level=debug@3:14", "http.listen=off@5:11",
                  "chunk_bytes=64KiB@6:14", "drain_timeout=1m30s@7:16", "insecure=true@8:11"));
}

TEST(ConfigFileTest, AListIsASequenceOrOneText) {
  EXPECT_THAT(Values("listen: unix:/x"), ElementsAre("listen=unix:/x@1:9"));
  EXPECT_THAT(Values("listen: [127.0.0.1:0, 'unix:/x']"),
              ElementsAre("listen=127.0.0.1:0,unix:/x@1:9"));
  EXPECT_THAT(Values("listen:\n  - 127.0.0.1:0\n  - unix:/x\n"),
              ElementsAre("listen=127.0.0.1:0,unix:/x@2:3"));
  EXPECT_EQ(Problem("listen: [a, [b]]"),
            "f:1:13: a value in listen is a list; allowed are addresses: host:port, [v6]:port and "
            "unix:/path [GW604]");
  EXPECT_THAT(Problem("listen: []"), StartsWith("f:1:9: listen is empty; allowed are"));
  EXPECT_THAT(Problem("listen: {a: b}"), StartsWith("f:1:9: listen is a mapping; allowed are"));
}

TEST(ConfigFileTest, NothingIsAValidFile) {
  for (const char* text : {"", "\n", "# only a comment\n", "---\n", "{}", "version: 1",
                           "tls:\n  # cert: x\nhttp:\n", "\xef\xbb\xbf# after a byte order mark"}) {
    EXPECT_THAT(Values(text), IsEmpty()) << text;
  }
}

TEST(ConfigFileTest, NamesTheKeyThatWasMeant) {
  EXPECT_EQ(Problem("\n  max_sesions: 3"),
            "f:2:3: unknown key \"max_sesions\"; did you mean \"max_sessions\"? [GW604]");
  const std::vector<std::pair<std::string, std::string>> meant = {
      {"max-sessions: 3", "max_sessions"},
      {"maxsessions: 3", "max_sessions"},
      {"log_level: info", "log.level"},
      {"tls_client_ca: x", "tls.client_ca"},
      {"insecure_http: true", "http.insecure"},
      {"log: {levle: info}", "log.level"},
      {"tsl: {cert: x}", "tls"},
      {"verison: 1", "version"}};
  for (const auto& [text, key] : meant) {
    EXPECT_THAT(Problem(text), HasSubstr(absl::StrCat("did you mean \"", key, "\"?"))) << text;
  }
  // A flag that is none of the file's.
  EXPECT_THAT(Problem("stop_on_eof: true"), HasSubstr("allowed are version, listen, admin_listen"));
}

TEST(ConfigFileTest, ListsTheKeysWhereNoneIsClose) {
  EXPECT_EQ(Problem("http: {workers: 3}"),
            "f:1:8: unknown key \"http.workers\"; allowed are listen, insecure [GW604]");
  EXPECT_EQ(
      Problem("http.listen: off"),
      "f:1:1: unknown key \"http.listen\"; allowed is a mapping http with the key listen [GW604]");
  EXPECT_THAT(Problem(absl::StrCat(std::string(1000, 'a'), ": 3")),
              AllOf(StartsWith("f:1:1: "), SizeIs(testing::Lt(600))));
}

TEST(ConfigFileTest, AKeyIsThereOnce) {
  EXPECT_EQ(Problem("max_sessions: 3\nlog: {level: info}\nmax_sessions: 3\n"),
            "f:3:1: key \"max_sessions\" is there twice; it is also on line 1 [GW604]");
  EXPECT_EQ(Problem("log: {level: info}\nlog: {format: json}\n"),
            "f:2:1: key \"log\" is there twice; it is also on line 1 [GW604]");
  EXPECT_EQ(Problem("tls: {cert: a, cert: b, key: c}"),
            "f:1:16: key \"cert\" is there twice; it is also on line 1 [GW604]");
}

TEST(ConfigFileTest, NamesTheFieldTheValueAndWhatIsAllowed) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"max_sessions: 0", "f:1:15: max_sessions is 0; allowed are 1 to 1000000 [GW602]"},
      {"max_sessions: 1000001",
       "f:1:15: max_sessions is 1000001; allowed are 1 to 1000000 [GW602]"},
      {"max_sessions: many", "f:1:15: max_sessions is \"many\"; allowed are 1 to 1000000 [GW602]"},
      {"max_sessions: 3.5", "f:1:15: max_sessions is \"3.5\"; allowed are 1 to 1000000 [GW602]"},
      {"max_sessions: 99999999999999999999",
       "f:1:15: max_sessions is \"99999999999999999999\"; allowed are 1 to 1000000 [GW602]"},
      {"max_sessions: '3'",
       "f:1:15: max_sessions is \"3\" in quotes; allowed without quotes are 1 to 1000000 [GW604]"},
      {"max_sessions: [3]", "f:1:15: max_sessions is a list; allowed are 1 to 1000000 [GW604]"},
      {"max_sessions:\n\n", "f:1:1: max_sessions is empty; allowed are 1 to 1000000 [GW604]"},
      {"window_chunks: -1", "f:1:16: window_chunks is \"-1\"; allowed are 1 to 1024 [GW602]"},
      {"chunk_bytes: 65",
       "f:1:14: chunk_bytes is 65; allowed are multiples of 8 from 64 to 16777216, or a size such "
       "as 64KiB [GW602]"},
      {"insecure: yes", "f:1:11: insecure is \"yes\"; allowed are true and false [GW604]"},
      {"insecure: 'true'",
       "f:1:11: insecure is \"true\" in quotes; allowed without quotes are true and false [GW604]"},
      {"drain_timeout: 30",
       "f:1:16: drain_timeout is \"30\"; allowed are durations such as 500ms, 30s and 2m, up to "
       "8760h [GW602]"},
      {"log: {level: loud}",
       "f:1:14: log.level is \"loud\"; allowed are debug, info, warning and error [GW602]"},
      {"log: loud", "f:1:6: log is \"loud\"; allowed is a mapping of level, format [GW604]"},
      {"tokens: ~", "f:1:1: tokens is empty; allowed are paths, and \"\" for none [GW604]"},
      {"reduce: gpu",
       "f:1:9: reduce is \"gpu\"; allowed are cpu, cuda, and cuda:0,2 with each GPU once [GW602]"},
      {"memory_limit: 101%",
       "f:1:15: memory_limit is \"101%\"; allowed are amounts of memory from 32MiB on, such as "
       "512MiB, 2GB and "
       "80% [GW602]"},
      {"version: 2", "f:1:10: version is \"2\"; allowed is 1 [GW604]"},
      {"max_sessions",
       "f:1:1: the file is \"max_sessions\"; allowed are lines such as "
       "max_sessions: 256 [GW604]"},
      {"- a", "f:1:1: the file is a list; allowed are lines such as max_sessions: 256 [GW604]"},
  };
  for (const auto& [text, problem] : wrong) EXPECT_EQ(Problem(text), problem);
}

TEST(ConfigFileTest, ReportsUpToTwentyProblemsInTheirOrder) {
  const ConfigFile two = ParseConfig("max_sessions: 0\nmax_connections: 5\nbogus: 1\n", "f");
  EXPECT_THAT(two.problems, ElementsAre(StartsWith("f:1:15: "), StartsWith("f:3:1: ")));
  std::string many;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&many, "unknown", i, ": 1\n");
  EXPECT_THAT(ParseConfig(many, "f").problems, SizeIs(20));
}

TEST(ConfigFileTest, RefusesWhatSettingsDoNotNeed) {
  // Each level has the one before ten times: a few lines for gigabytes.
  std::string bomb = "a0: &a0 [x]\n";
  for (int i = 1; i < 20; ++i) {
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [*a", i - 1, ", *a", i - 1, "]\n");
  }
  EXPECT_EQ(Problem(bomb), "f:1:5: anchors are not supported [GW604]");
  EXPECT_THAT(Problem("listen: *x"), StartsWith("f:1:9: "));
  EXPECT_THAT(Problem("tokens: !!str x"), HasSubstr("tags are not supported"));
  EXPECT_THAT(Problem("tokens: !secret x"), HasSubstr("tags are not supported"));
  EXPECT_THAT(Problem("max_sessions: 1\n---\nmax_sessions: 2\n"), HasSubstr("a second document"));
  EXPECT_THAT(Problem(std::string(500'000, '[')), HasSubstr("nested more than 8 deep"));
  std::string deep = "listen: ";
  for (int i = 0; i < 100'000; ++i) deep += "{a: ";
  EXPECT_THAT(Problem(deep), HasSubstr("nested more than 8 deep"));
  std::string wide = "listen: [";
  for (int i = 0; i < 100'000; ++i) wide += "a,";
  EXPECT_THAT(Problem(wide + "a]"), HasSubstr("more than 10000 keys and values"));
}

TEST(ConfigFileTest, RefusesWhatIsNoText) {
  EXPECT_EQ(Problem(std::string("tokens: a\nlog: \0", 16)),
            "f:2:6: a control character; the file is text in UTF-8 [GW604]");
  EXPECT_THAT(Problem("tokens: \x1b[31m"), StartsWith("f:1:9: a control character"));
  EXPECT_THAT(Problem("\xff\xfet\x00o\x00"), StartsWith("f:1:1: a control character"));
  for (const char* text : {"a: [", "a: 'b", "a: b: c", "\ta: b", "a: {", "%YAML 9.9\n---\n", "? ",
                           "a: ]", "- a\nb: c"}) {
    EXPECT_THAT(ParseConfig(text, "f").problems, testing::Not(IsEmpty())) << text;
  }
}

TEST(ConfigFileTest, ProblemsDoNotActOnATerminal) {
  const ConfigFile file = ParseConfig("\"a\\e[31mb\": 1", "n\x1bme");
  ASSERT_THAT(file.problems, SizeIs(1));
  EXPECT_THAT(file.problems.front(), HasSubstr("\\u001b[31mb"));
  EXPECT_THAT(file.problems.front(), StartsWith("n\\u001bme:1:1: "));
}

}  // namespace
}  // namespace gradwire::server

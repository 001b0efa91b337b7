#include "server/daemon/configuration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/session_options.h"
#include "server/daemon/config_file.h"
#include "server/daemon/config_show.h"
#include "tests/testing/process.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Json = nlohmann::json;

class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() { unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const std::string name_;
};

class ConfigurationTest : public ::testing::Test {
 protected:
  // Flags that name a file with this text.
  Flags WithFile(const std::string& text) {
    std::ofstream(path_) << text;
    return {.config = path_};
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "gradwired.yaml";
};

TEST_F(ConfigurationTest, FlagsCountBeforeVariablesAndVariablesBeforeTheFile) {
  Flags flags = WithFile("max_sessions: 3\nmax_connections: 30\nopen_buckets: 5\n");
  flags.words = {{"max-sessions", {"1"}}};
  const Variable sessions("GRADWIRE_MAX_SESSIONS", "2");
  const Variable connections("GRADWIRE_MAX_CONNECTIONS", "20");
  Loaded loaded = Load(flags);
  ASSERT_THAT(loaded.problems, IsEmpty());
  Configuration& got = loaded.configuration;
  EXPECT_EQ(got.options.max_sessions, 1);
  EXPECT_EQ(got.origins["max-sessions"].text, "--max-sessions");
  EXPECT_EQ(got.options.max_connections, 20);
  EXPECT_EQ(got.origins["max-connections"].text, "GRADWIRE_MAX_CONNECTIONS");
  EXPECT_EQ(got.options.open_buckets, 5u);
  EXPECT_EQ(got.origins["open-buckets"].text, path_ + ":3");
  EXPECT_EQ(got.options.window_chunks, 4u);
  EXPECT_EQ(got.origins["window-chunks"].text, "default");
  EXPECT_EQ(got.file, path_);
}

// One value for each setting, none the default; as in the file, in a variable and as a flag.
struct Sample {
  std::string file;
  std::string word;
};
const std::vector<std::pair<std::string, Sample>> kSamples = {
    {"listen", {"[127.0.0.1:0, 'unix:/x']", "127.0.0.1:0,unix:/x"}},
    {"admin_listen", {"[127.0.0.1:0, 'unix:/y']", "127.0.0.1:0,unix:/y"}},
    {"socket_mode", {"0660", "0660"}},
    {"insecure", {"true", "true"}},
    {"tls.cert", {"/c", "/c"}},
    {"tls.key", {"/k", "/k"}},
    {"tls.client_ca", {"/ca", "/ca"}},
    {"tokens", {"/t", "/t"}},
    {"http.listen", {"off", "off"}},
    {"upstream.address", {"'a-{0..1}:29610'", "a-{0..1}:29610"}},
    {"upstream.tls_ca", {"/uca", "/uca"}},
    {"upstream.tls_cert", {"/uc", "/uc"}},
    {"upstream.tls_key", {"/uk", "/uk"}},
    {"upstream.token_file", {"/ut", "/ut"}},
    {"http.insecure", {"true", "true"}},
    {"max_connections", {"17", "17"}},
    {"max_sessions", {"18", "18"}},
    {"memory_limit", {"1GiB", "1GiB"}},
    {"chunk_bytes", {"65536", "64KiB"}},
    {"network_chunk_bytes", {"8192", "8KiB"}},
    {"window_chunks", {"3", "3"}},
    {"network_window_chunks", {"5", "5"}},
    {"open_buckets", {"2", "2"}},
    {"on_coordinator_loss", {"fail", "fail"}},
    {"coordinator_grace", {"90s", "1.5m"}},
    {"on_member_loss", {"wait", "wait"}},
    {"member_grace", {"5m", "300s"}},
    {"min_members", {"3", "3"}},
    {"arbiter", {"/a", "/a"}},
    {"shrink_after", {"20s", "20000ms"}},
    {"straggler_multiple", {"2.5", "2.50"}},
    {"straggler_share", {"0.25", "2.5e-1"}},
    {"ledger", {"true", "true"}},
    {"reduce", {"cuda", "cuda"}},
    {"cuda_library", {"/l", "/l"}},
    {"drain_timeout", {"1.5s", "1500ms"}},
    {"log.level", {"error", "error"}},
    {"log.format", {"json", "json"}},
    {"quota.identity", {"'sessions=4,memory=1GiB'", "sessions=4,memory=1GiB"}},
    {"quota.session", {"'members=4,joins=2'", "members=4,joins=2"}},
    {"audit.log", {"/tmp/audit", "/tmp/audit"}},
    {"record", {"/r", "/r"}},
    {"record_steps", {"16", "16"}},
    {"record_sessions", {"3", "3"}},
};

std::string AsFile(const std::string& key, const std::string& value) {
  const std::size_t dot = key.find('.');
  if (dot == std::string::npos) return absl::StrCat(key, ": ", value, "\n");
  return absl::StrCat(key.substr(0, dot), ": {", key.substr(dot + 1), ": ", value, "}\n");
}

TEST_F(ConfigurationTest, EachSettingIsAFlagAVariableAndAKey) {
  std::set<std::string> tried;
  for (const Setting& setting : Settings()) {
    for (const auto& [key, sample] : kSamples) {
      if (key != setting.key) continue;
      tried.insert(key);
      ServerOptions by_file = DaemonDefaults();
      const ConfigFile file = ParseConfig(AsFile(key, sample.file), "f");
      ASSERT_EQ(file.values.size(), 1u) << key;
      ASSERT_TRUE(Set(setting, "x", file.values[0].words, by_file).ok());
      EXPECT_NE(Text(setting, by_file), Text(setting, DaemonDefaults())) << key;

      // These need others beside them.
      const bool alone = !key.starts_with("tls.");
      const Variable variable(setting.variable(), sample.word);
      const Loaded by_variable = Load({.config = ""});
      EXPECT_EQ(by_variable.problems.empty(), alone) << key;
      EXPECT_EQ(Text(setting, by_variable.configuration.options), Text(setting, by_file)) << key;
    }
  }
  EXPECT_EQ(tried.size(), kSamples.size());
  // All but --stop-on-eof.
  EXPECT_EQ(tried.size() + 1, Settings().size());
}

// A list that may be empty can be emptied again, and is shown so that a file can have it.
TEST_F(ConfigurationTest, AListOfNothingIsSaidWithBracketsOrQuotes) {
  const Variable variable("GRADWIRE_ADMIN_LISTEN", "unix:/y");
  for (const char* nothing : {"[]", "\"\""}) {
    const ConfigFile file = ParseConfig(absl::StrCat("admin_listen: ", nothing), "f");
    EXPECT_THAT(file.problems, IsEmpty()) << nothing;
  }
  const Loaded loaded = Load({.config = "", .words = {{"admin-listen", {""}}}});
  EXPECT_THAT(loaded.problems, IsEmpty());
  EXPECT_THAT(loaded.configuration.options.admin_listen, IsEmpty());
  EXPECT_THAT(ShowYaml(loaded.configuration, false), HasSubstr("\nadmin_listen: []\n"));
  EXPECT_EQ(ParseConfig("listen: []", "f").problems.size(), 1U);
}

TEST_F(ConfigurationTest, AnEmptyVariableIsNone) {
  const Variable sessions("GRADWIRE_MAX_SESSIONS", "");
  const Loaded loaded = Load({.config = ""});
  EXPECT_THAT(loaded.problems, IsEmpty());
  EXPECT_EQ(loaded.configuration.options.max_sessions, 256);
}

TEST_F(ConfigurationTest, TheFileIsThatOfTheFlagThenOfTheVariable) {
  const Flags flags = WithFile("max_sessions: 3");
  const std::string other = folder_ / "other.yaml";
  std::ofstream(other) << "max_sessions: 4";
  const Variable config("GRADWIRE_CONFIG", other);
  EXPECT_EQ(Load(flags).configuration.options.max_sessions, 3);
  EXPECT_EQ(Load({}).configuration.options.max_sessions, 4);
  EXPECT_EQ(Load({.config = ""}).configuration.options.max_sessions, 256);
  const Variable none("GRADWIRE_CONFIG", "");
  EXPECT_EQ(Load({}).configuration.options.max_sessions, 256);
  EXPECT_EQ(Load({}).configuration.file, "");
}

TEST_F(ConfigurationTest, ErrorsNameTheirOriginAndTellTheExitCode) {
  const Loaded in_file = Load(WithFile("max_sessions: 0"));
  EXPECT_THAT(in_file.problems, ElementsAre(StartsWith(path_ + ":1:15: max_sessions is 0;")));
  EXPECT_EQ(in_file.exit_code, 78);
  const Loaded flag = Load({.config = "", .words = {{"max-sessions", {"0"}}}});
  EXPECT_THAT(flag.problems, ElementsAre("--max-sessions is 0; allowed are 1 to 1000000 [GW602]"));
  EXPECT_EQ(flag.exit_code, 2);
  {
    const Variable sessions("GRADWIRE_MAX_SESSIONS", "x");
    const Loaded variable = Load({.config = ""});
    EXPECT_THAT(variable.problems,
                ElementsAre("GRADWIRE_MAX_SESSIONS is \"x\"; allowed are 1 to 1000000 [GW602]"));
    EXPECT_EQ(variable.exit_code, 2);
    // Both are named, and the file decides.
    const Loaded both = Load(WithFile("max_sessions: 0"));
    EXPECT_EQ(both.problems.size(), 2u);
    EXPECT_EQ(both.exit_code, 78);
  }
}

TEST_F(ConfigurationTest, ValuesThatDoNotFitEachOtherNameWhereOneIs) {
  const Loaded key = Load(WithFile("max_sessions: 3\ntls:\n  cert: /c\n"));
  EXPECT_THAT(key.problems, ElementsAre(path_ + ":3: tls_key is empty, and tls_cert is not; "
                                                "allowed: both or neither [GW111]"));
  EXPECT_EQ(key.exit_code, 78);
  const Loaded open = Load(WithFile("listen: 0.0.0.0:0"));
  EXPECT_THAT(open.problems, ElementsAre(StartsWith(path_ + ":1: listen address")));
  EXPECT_EQ(open.exit_code, 78);
  Flags flags = WithFile("listen: 0.0.0.0:0");
  flags.words = {{"insecure", {"true"}}};
  EXPECT_THAT(Load(flags).problems, IsEmpty());
  const Loaded http = Load({.config = "", .words = {{"http-listen", {"0.0.0.0:0"}}}});
  EXPECT_THAT(http.problems, ElementsAre(StartsWith("--http-listen: http_listen is")));
  EXPECT_EQ(http.exit_code, 2);
}

TEST_F(ConfigurationTest, AFileThatCannotBeReadIsAnError) {
  for (const std::string& path : {folder_ / "missing.yaml", folder_.path()}) {
    const Loaded loaded = Load({.config = path});
    EXPECT_THAT(loaded.problems, ElementsAre(StartsWith(path + " cannot be read")));
    EXPECT_EQ(loaded.exit_code, 78);
  }
  const Loaded large = Load(WithFile(std::string((1 << 20) + 1, '#')));
  EXPECT_THAT(large.problems, ElementsAre(HasSubstr("has more than 1048576 bytes")));
  EXPECT_EQ(large.exit_code, 78);
}

TEST_F(ConfigurationTest, WhatShowPrintsIsAFileWithTheSameValues) {
  std::string text;
  for (const auto& [key, sample] : kSamples) {
    // on_member_loss does not go with this one's value.
    if (key == "on_coordinator_loss") continue;
    if (key.find('.') == std::string::npos) text += AsFile(key, sample.file);
  }
  text +=
      "tls: {cert: /c, key: /k, client_ca: /ca}\nhttp: {insecure: true, listen: '127.0.0.1:0'}\n";
  const Loaded loaded = Load(WithFile(text));
  ASSERT_THAT(loaded.problems, IsEmpty());
  for (const bool origins : {false, true}) {
    const Loaded again = Load(WithFile(ShowYaml(loaded.configuration, origins)));
    EXPECT_THAT(again.problems, IsEmpty());
    EXPECT_EQ(ShowJson(again.configuration, false), ShowJson(loaded.configuration, false));
  }
}

TEST_F(ConfigurationTest, ShowTakesAnyBytes) {
  const Loaded loaded = Load({.config = "", .words = {{"tokens", {"\xff\"\n#\xc3"}}}});
  ASSERT_THAT(loaded.problems, IsEmpty());
  EXPECT_TRUE(Json::accept(ShowJson(loaded.configuration, true)));
  EXPECT_THAT(Load(WithFile(ShowYaml(loaded.configuration, true))).problems, IsEmpty());
}

// The schema, walked as a validator would.
void ExpectSchemaHas(const Json& schema, const std::string& key, const Json& value) {
  const std::size_t dot = key.find('.');
  const Json& top = schema.at("properties");
  const Json& property = dot == std::string::npos
                             ? top.at(key)
                             : top.at(key.substr(0, dot)).at("properties").at(key.substr(dot + 1));
  EXPECT_EQ(property.at("default"), value) << key;
  EXPECT_TRUE(property.contains("description")) << key;
}

TEST_F(ConfigurationTest, TheSchemaHasEachKeyWithTypeRangeAndDefault) {
  const Json schema = Json::parse(Schema());
  EXPECT_EQ(schema.at("additionalProperties"), false);
  EXPECT_EQ(schema.at("properties").at("tls").at("additionalProperties"), false);
  ExpectSchemaHas(schema, "listen", {"127.0.0.1:29610"});
  ExpectSchemaHas(schema, "http.listen", "auto");
  ExpectSchemaHas(schema, "drain_timeout", "30s");
  ExpectSchemaHas(schema, "insecure", false);
  ExpectSchemaHas(schema, "chunk_bytes", 1044480);
  const Json& properties = schema.at("properties");
  EXPECT_EQ(properties.at("max_sessions").at("type"), "integer");
  EXPECT_EQ(properties.at("max_sessions").at("minimum"), 1);
  EXPECT_EQ(properties.at("max_sessions").at("maximum"), 1'000'000);
  EXPECT_EQ(properties.at("chunk_bytes").at("multipleOf"), 8);
  EXPECT_EQ(properties.at("log").at("properties").at("level").at("enum"),
            Json({"debug", "info", "warning", "error"}));
  EXPECT_THAT(properties.at("max_sessions").at("description"), HasSubstr("SIGHUP applies"));
  EXPECT_THAT(properties.at("max_connections").at("description"), HasSubstr("needs a restart"));
}

// The sessions' own rules, which the table repeats for its errors and for the schema.
TEST_F(ConfigurationTest, RangesAreThoseOfSessions) {
  for (const std::string name : {"chunk-bytes", "network-chunk-bytes", "window-chunks",
                                 "network-window-chunks", "open-buckets"}) {
    const Setting* setting = FindSetting(name);
    ASSERT_NE(setting, nullptr);
    const auto accepted = [&](std::int64_t value) {
      SessionOptions session;
      session.name = "s";
      const auto number = static_cast<std::uint32_t>(value);
      if (name.ends_with("chunk-bytes")) session.chunk_bytes = static_cast<std::size_t>(value);
      if (name.ends_with("window-chunks")) session.window_chunks = number;
      if (name == "open-buckets") session.open_buckets = number;
      return session.Validate().ok();
    };
    EXPECT_TRUE(accepted(setting->low)) << name;
    EXPECT_TRUE(accepted(setting->high)) << name;
    EXPECT_FALSE(accepted(setting->low - setting->multiple)) << name;
    EXPECT_FALSE(accepted(setting->high + setting->multiple)) << name;
  }
}

TEST_F(ConfigurationTest, TheSampleHasEachKeyWithItsDefault) {
  std::ifstream in(GRADWIRE_SAMPLE_CONFIG);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const ConfigFile file = ParseConfig(text, "sample");
  EXPECT_THAT(file.problems, IsEmpty());
  std::set<std::string> named;
  for (const FileValue& value : file.values) {
    named.insert(value.setting->key);
    ServerOptions options = DaemonDefaults();
    ASSERT_TRUE(Set(*value.setting, "x", value.words, options).ok());
    EXPECT_EQ(Text(*value.setting, options), Text(*value.setting, DaemonDefaults()))
        << value.setting->key;
    // What SIGHUP changes is marked, and nothing else.
    std::istringstream lines(text);
    std::string line;
    for (int i = 0; i < value.line; ++i) std::getline(lines, line);
    EXPECT_EQ(line.find("# SIGHUP") != std::string::npos, value.setting->reloadable) << line;
  }
  EXPECT_EQ(named.size(), kSamples.size());
}

}  // namespace
}  // namespace gradwire::server

#include "server/daemon/logging.h"

#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "server/session/log_scope.h"
#include "server/session/registry.h"
#include "server/session/session_runner.h"

namespace gradwire::server {
namespace {

using Json = nlohmann::json;

class LoggingTest : public ::testing::Test {
 protected:
  static std::string Line(const char* format, const LogFields* fields) {
    ::testing::internal::CaptureStderr();
    SetUpLog("info", format);
    if (fields == nullptr) {
      spdlog::info("said \"so\"");
    } else {
      const LogScope scope(*fields);
      spdlog::info("said \"so\"");
    }
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(LoggingTest, JsonHasTheFieldsOfItsScope) {
  const LogFields all = {.session = "di\"gits", .generation = 7, .step = 0, .rank = 3};
  Json line = Json::parse(Line("json", &all));
  line.erase("time");
  EXPECT_EQ(line, Json::parse(R"({"level":"info","message":"said \"so\"","session":"di\"gits",
                                  "generation":7,"step":0,"rank":3})"));
  const LogFields some = {.session = "digits"};
  Json other = Json::parse(Line("json", &some));
  other.erase("time");
  EXPECT_EQ(other, Json::parse(R"({"level":"info","message":"said \"so\"","session":"digits"})"));
  Json none = Json::parse(Line("json", nullptr));
  none.erase("time");
  EXPECT_EQ(none, Json::parse(R"({"level":"info","message":"said \"so\""})"));
}

// A registry's and a session's own lines, with all that they are about.
TEST_F(LoggingTest, LinesOfASessionHaveItsFields) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  const ParameterSpec parameter = {.name = "w", .shape = {4}, .dtype = DType::kFloat32};
  SessionOptions options;
  options.name = "digits";
  options.world_size = 2;
  options.manifest = std::vector{parameter};
  ::testing::internal::CaptureStderr();
  SetUpLog("info", "json");
  const auto joined = registry.Join(
      options,
      {.world_size = 2, .rank = 1, .start_id = 7, .spec = {}, .manifest = std::vector{parameter}},
      absl::UnixEpoch());
  const std::string text = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(joined.ok()) << joined.status();
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2) << text;
  const std::uint64_t generation = joined->member.session->options().generation;
  const Json created = Json::parse(lines[0]);
  EXPECT_EQ(created["session"], "digits");
  EXPECT_EQ(created["generation"], generation);
  EXPECT_FALSE(created.contains("rank"));
  const Json rank = Json::parse(lines[1]);
  EXPECT_EQ(rank["message"],
            absl::StrCat("session digits generation ", generation, ": rank 1 joined"));
  EXPECT_EQ(rank["session"], "digits");
  EXPECT_EQ(rank["generation"], generation);
  EXPECT_EQ(rank["step"], 0);
  EXPECT_EQ(rank["rank"], 1);
}

TEST_F(LoggingTest, TextStaysASentence) {
  const LogFields fields = {.session = "digits", .generation = 7, .step = 0, .rank = 3};
  const std::string line = Line("text", &fields);
  EXPECT_EQ(line.substr(line.find(' ')), " info said \"so\"\n");
}

TEST_F(LoggingTest, TheInnermostScopeCountsAndTheOuterOneComesBack) {
  const LogFields outer = {.session = "outer"};
  const LogFields inner = {.session = "inner"};
  EXPECT_EQ(LogScope::current(), nullptr);
  {
    const LogScope one(outer);
    {
      const LogScope two(inner);
      EXPECT_EQ(LogScope::current(), &inner);
    }
    EXPECT_EQ(LogScope::current(), &outer);
  }
  EXPECT_EQ(LogScope::current(), nullptr);
}

}  // namespace
}  // namespace gradwire::server

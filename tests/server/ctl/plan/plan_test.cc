// What `gradwirectl plan` prints, and what it refuses.
#include "server/ctl/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/ctl/ctl_process.h"

namespace gradwire::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string FirstLine(const Answer& answer) {
  return answer.text.substr(0, answer.text.find('\n'));
}

TEST(PlanCommand, NamesFieldValueAndWhatIsAllowed) {
  const auto refusal = [](std::vector<std::string> words) {
    words.insert(words.begin(), "plan");
    const Answer answer = Ctl(words);
    EXPECT_EQ(answer.exit_code, 2) << answer.text;
    return FirstLine(answer);
  };
  EXPECT_EQ(refusal({"--hosts", "0"}),
            "gradwirectl: hosts is \"0\"; allowed are 1 to 4096 [GW701]");
  EXPECT_EQ(refusal({"--hosts", "4097"}),
            "gradwirectl: hosts is \"4097\"; allowed are 1 to 4096 [GW701]");
  EXPECT_EQ(refusal({"--members-per-host", "x"}),
            "gradwirectl: members-per-host is \"x\"; allowed are 1 to 64 [GW701]");
  EXPECT_EQ(refusal({"--cores", "-1"}),
            "gradwirectl: cores is \"-1\"; allowed are 1 to 1024 [GW701]");
  for (const char* link : {"1", "gbit", "nan gbit", "-1gbit", "0.9mbit", "1001gbit", "1Gbit/h"}) {
    EXPECT_EQ(refusal({absl::StrCat("--link=", link)}),
              absl::StrCat("gradwirectl: link is \"", link,
                           "\"; allowed are 1Mbit/s to 1000Gbit/s, such as 100Mbit/s or "
                           "2.5Gbit/s [GW701]"));
  }
  for (const char* time : {"1", "-1ms", "11s", "inf", "x"}) {
    EXPECT_EQ(refusal({absl::StrCat("--round-trip=", time)}),
              absl::StrCat("gradwirectl: round-trip is \"", time,
                           "\"; allowed are 0 to 10s, such as 0.2ms [GW701]"));
  }
  for (const char* seconds : {"x", "-1", "nan", "1e9"}) {
    EXPECT_EQ(refusal({absl::StrCat("--compute=", seconds)}),
              absl::StrCat("gradwirectl: compute is \"", seconds,
                           "\"; allowed are 0 to 86400 seconds, such as 0.25 [GW701]"));
  }
  for (const char* model : {"0", "1001B", "99999999999999999B"}) {
    EXPECT_EQ(refusal({"--model", model}),
              absl::StrCat("gradwirectl: model is \"", model,
                           "\"; allowed are 1 to 1000B parameters [GW701]"));
  }
  EXPECT_THAT(refusal({"--model", "/no/such\nfile"}),
              StartsWith("gradwirectl: model is \"/no/such\\u000afile\"; allowed are gpt2, mlp, "
                         "resnet18, a number of parameters such as 25000000 or 7B, and a file "));
  EXPECT_THAT(refusal({"--model", "/dev/zero"}), HasSubstr("File too large"));
  EXPECT_THAT(refusal({"--model", "7B", "--hook", "power_sgd"}), HasSubstr("depend on shapes"));
  EXPECT_THAT(refusal({"--hook", "fp17"}), HasSubstr("\"fp17\" is not known"));
}

TEST(PlanCommand, ReadsRates) {
  EXPECT_DOUBLE_EQ(*ParseRate("1Gbit/s"), 125e6);
  EXPECT_DOUBLE_EQ(*ParseRate("2.5 gbit"), 312.5e6);
  EXPECT_DOUBLE_EQ(*ParseRate("100mbit"), 12.5e6);
  EXPECT_DOUBLE_EQ(*ParseRate("1000kbit/s"), 125e3);
}

TEST(PlanCommand, TakesAFileOfShapesAsTheOption) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder / "shapes") << "100x50\n2*7,\n3x3\n";
  const std::vector<std::string> rest = {"--hook", "power_sgd", "-o", "json"};
  const auto plan = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "plan");
    words.insert(words.end(), rest.begin(), rest.end());
    const Answer answer = CtlOutput(words);
    EXPECT_EQ(answer.exit_code, 0) << answer.text;
    return nlohmann::json::parse(answer.text);
  };
  const auto read = plan({"--model", folder / "shapes"});
  EXPECT_EQ(read, plan({"--shapes", "100x50,2*7,3x3"}));
  // P and Q of rank 1, two vectors, and a matrix that is too small.
  EXPECT_EQ(read["topologies"][0]["member_link_bytes"], 4.0 * (150 + 14 + 9));
}

TEST(PlanCommand, PrintsATableOrADocument) {
  const Answer table = CtlOutput({"plan", "--hosts=4", "--compute=0.5"});
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_THAT(table.text, HasSubstr("\n communication      step    member link    daemon link"));
  EXPECT_THAT(table.text, HasSubstr("shards on the members' hosts\n"));
  EXPECT_THAT(table.text, HasSubstr("\nRecommended: "));
  const Answer answer = CtlOutput({"-o", "json", "plan", "--hosts=4", "--compute=0.5"});
  const auto document = nlohmann::json::parse(answer.text);
  EXPECT_EQ(document["topologies"].size(), 4U);
  const auto& star = document["topologies"][0];
  EXPECT_EQ(star["topology"], "star");
  EXPECT_EQ(star["member_link_bytes"], 4.0 * 11689512);
  EXPECT_DOUBLE_EQ(star["step_seconds"].get<double>(),
                   0.5 + star["communication_seconds"].get<double>());
  EXPECT_EQ(document["recommended"], "shards on the members' hosts");
  const auto scale = nlohmann::json::parse(CtlOutput({"-o", "json", "plan", "--scale"}).text);
  EXPECT_EQ(scale["scale"].back()["hosts"], 4096);
}

// Blocks of the README that begin with "$ gradwirectl plan" have what the command prints.
TEST(PlanCommand, PrintsWhatTheReadmeShows) {
  std::ifstream file(GRADWIRE_SERVER_README);
  std::stringstream text;
  text << file.rdbuf();
  const std::string readme = text.str();
  const std::string mark = "```\n$ gradwirectl plan";
  int blocks = 0;
  for (std::size_t at = readme.find(mark); at != std::string::npos;
       at = readme.find(mark, at + 1)) {
    const std::size_t command = at + std::string("```\n$ gradwirectl ").size();
    const std::size_t line = readme.find('\n', command);
    const std::size_t end = readme.find("```\n", line);
    ASSERT_NE(end, std::string::npos);
    std::istringstream words(readme.substr(command, line - command));
    std::vector<std::string> arguments;
    for (std::string word; words >> word;) arguments.push_back(word);
    EXPECT_EQ(CtlOutput(arguments).text, readme.substr(line + 1, end - line - 1));
    ++blocks;
  }
  EXPECT_GE(blocks, 3);
}

}  // namespace
}  // namespace gradwire::ctl

// `gradwirectl session digest`: its lines, what it makes of another run's, and two runs on a
// daemon.
#include "server/ctl/digests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/client.h"
#include "tests/server/ctl/ctl_process.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::ctl {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

StepDigests Digests(const std::vector<std::pair<std::int64_t, std::uint64_t>>& all) {
  StepDigests digests;
  for (const auto& [step, chain] : all) {
    digests.emplace_back().set_step(step);
    digests.back().set_chain(chain);
  }
  return digests;
}

std::string Compared(const StepDigests& ours, const StepDigests& theirs) {
  const auto comparison = Compare(ours, theirs);
  return comparison.ok() ? ComparisonText(*comparison) : std::string(comparison.status().message());
}

TEST(Digests, AreReadAsTheyAreWritten) {
  v1::GetDigestsResponse response;
  for (const v1::StepDigest& one : Digests({{0, 0x9f0c}, {41, ~std::uint64_t{0}}})) {
    *response.add_digests() = one;
  }
  const std::string text = DigestsText(response);
  EXPECT_EQ(text, "step 0  0000000000009f0c\nstep 41  ffffffffffffffff\n");
  const auto read = ReadDigests("f", text);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 2U);
  EXPECT_EQ((*read)[0].chain(), 0x9f0cU);
  EXPECT_EQ((*read)[1].step(), 41);
}

TEST(Digests, NameTheLineThatIsNone) {
  const std::string good = "step 4  0000000000009f0c\n";
  for (const char* bad : {"step 5", "step 5  9f0c", "step -1  0000000000009f0c", "a\tb",
                          "step 5  000000000000xxxx", "step 5  0000000000009f0c more"}) {
    const absl::Status refused = ReadDigests("runs/a", good + bad).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("runs/a: line 2 is \""), HasSubstr("[GW702]")));
  }
  EXPECT_THAT(std::string(ReadDigests("f", good + good).status().message()),
              HasSubstr("f: line 2 is \"step 4  0000000000009f0c\"; allowed is a step after 4"));
  EXPECT_TRUE(ReadDigests("f", "").ok());
}

TEST(Digests, SayUpToWhereRunsAreTheSame) {
  EXPECT_EQ(Compared(Digests({{0, 7}, {1, 8}, {2, 9}}), Digests({{1, 8}, {2, 9}, {3, 5}})),
            "the runs are the same up to step 2, the last that both have\n");
  EXPECT_EQ(Compared(Digests({{1, 8}, {2, 9}}), Digests({{1, 8}, {2, 5}})),
            "the runs differ since step 2\n");
  EXPECT_EQ(Compared(Digests({{1200, 8}, {1250, 3}, {1300, 9}}), Digests({{1200, 8}, {1300, 5}})),
            "the runs differ since a step between 1201 and 1300\n");
  EXPECT_EQ(Compared(Digests({{0, 8}}), Digests({{0, 5}})), "the runs differ since step 0\n");
  EXPECT_EQ(Compared(Digests({{40, 8}}), Digests({{40, 5}})),
            "the runs differ since a step between 0 and 40\n");
  EXPECT_THAT(Compared(Digests({{3, 8}, {5, 8}}), Digests({{6, 5}})),
              HasSubstr("no step in common: the session's are 3 to 5, the file's 6 to 6 [GW7"));
  EXPECT_THAT(Compared({}, Digests({{6, 5}})), HasSubstr("the session's are none, the file's"));
}

class DigestCommand : public ::testing::Test {
 protected:
  const std::vector<ParameterSpec> parameters_ = {MakeParameter("a", 100)};

  // From the step `other` on the gradients are others; `meanwhile` runs before they leave.
  void Train(const std::string& session, int steps, int other,
             const std::function<void()>& meanwhile = {}) const {
    const ClientOptions options{.address = daemon_.address(),
                                .session = session,
                                .world_size = 2,
                                .parameters = parameters_};
    ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
      for (int step = 0; step < steps; ++step) {
        Gradients gradients(parameters_);
        gradients.Fill(rank, step < other ? step : step + 100);
        GradBucket bucket = gradients.Bucket();
        if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
        if (auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
      }
      if (absl::Status status = client.Barrier(); !status.ok()) return status;
      if (rank == 0 && meanwhile) meanwhile();
      if (absl::Status status = client.Barrier(); !status.ok()) return status;
      return client.Leave();
    }));
  }
  Answer Tool(std::vector<std::string> words) const {
    words.insert(words.begin(), {"--address", daemon_.address(), "session", "digest"});
    return Ctl(std::move(words));
  }
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = daemon_.Path(name);
    std::ofstream(path) << text;
    return path;
  }

  const TestDaemon daemon_;
};

TEST_F(DigestCommand, ShowsThemAndComparesThemWithAnotherRuns) {
  Train("one", 4, 4, [&] {
    const Answer all = Tool({"one"});
    EXPECT_EQ(all.exit_code, 0);
    EXPECT_THAT(all.text, MatchesRegex("step 0  [0-9a-f]+\nstep 1  [0-9a-f]+\nstep 2  "
                                       "[0-9a-f]+\nstep 3  [0-9a-f]+\n"));
    EXPECT_THAT(Tool({"one", "--first", "1", "--count", "2"}).text,
                MatchesRegex("step 1  [0-9a-f]+\nstep 2  [0-9a-f]+\n"));
    EXPECT_EQ(Tool({"one", "--first", "9"}).text,
              "gradwirectl: step 9 is not over; step 4 is open\n");
    const auto json = nlohmann::json::parse(
        CtlOutput({"--address", daemon_.address(), "-o", "json", "session", "digest", "one"}).text);
    EXPECT_EQ(json["step"], "4");
    EXPECT_EQ(json["digests"].size(), 4U);
    EXPECT_EQ(json["digests"][3]["step"], "3");
  });
  // Also of a session that has ended.
  const std::string file = Write("one.digests", Tool({"one"}).text);
  Train("same", 6, 6);
  const Answer same = Tool({"same", "--compare", file});
  EXPECT_EQ(same.exit_code, 0);
  EXPECT_EQ(same.text, "the runs are the same up to step 3, the last that both have\n");
  Train("other", 4, 2);
  const Answer other = Tool({"other", "--compare", file});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_EQ(other.text, "the runs differ since step 2\n");
  const Answer between =
      Tool({"other", "--compare", Write("thin", Tool({"one", "--first", "3"}).text)});
  EXPECT_EQ(between.exit_code, 1);
  EXPECT_EQ(between.text, "the runs differ since a step between 0 and 3\n");
  const Answer document = Tool({"-o", "json", "other", "--compare", file});
  EXPECT_EQ(document.exit_code, 1);
  EXPECT_EQ(document.text, "{\"same\":false,\"last_same_step\":1,\"first_different_step\":2}\n");
}

TEST_F(DigestCommand, AnswersClearly) {
  EXPECT_THAT(Tool({"nobody"}).text, HasSubstr("has none named \"nobody\""));
  EXPECT_EQ(Tool({"nobody"}).exit_code, 1);
  Train("one", 2, 2);
  const Answer malformed = Tool({"one", "--compare", Write("bad", "step 0  12\n")});
  EXPECT_EQ(malformed.exit_code, 1);
  EXPECT_THAT(malformed.text, HasSubstr("/bad: line 1 is \"step 0  12\"; allowed are lines of"));
  const Answer apart = Tool({"one", "--compare", Write("apart", "step 7  0000000000000012\n")});
  EXPECT_EQ(apart.exit_code, 1);
  EXPECT_THAT(apart.text,
              HasSubstr("no step in common: the session's are 0 to 1, the file's 7 to 7"));
  EXPECT_THAT(Tool({"one", "--compare", daemon_.Path("none")}).text, HasSubstr("none"));
  EXPECT_EQ(Tool({"one", "--first", "-1"}).exit_code, 2);
}

TEST(DigestsOfShards, AreTheFirstOnes) {
  const TestDaemon lead;
  const TestDaemon second;
  const ClientOptions options{.address = absl::StrCat(lead.address(), ",", second.address()),
                              .session = "s",
                              .world_size = 1,
                              .parameters = {MakeParameter("a", 5000)}};
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
    Gradients gradients(options.parameters);
    gradients.Fill(rank, 0);
    GradBucket bucket = gradients.Bucket();
    if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
    if (auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
    return client.Leave();
  }));
  const auto ask = [](const std::string& address) {
    return Ctl({"--address", address, "session", "digest", "s"});
  };
  const Answer all = ask(options.address);
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_THAT(all.text, MatchesRegex("step 0  [0-9a-f]+\n"));
  EXPECT_EQ(ask(lead.address()).text, all.text);
  const Answer other = ask(second.address());
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.text, HasSubstr(absl::StrCat("session \"s\" is shard 1 here; ask shard 0 at ",
                                                 lead.address())));
}

}  // namespace
}  // namespace gradwire::ctl

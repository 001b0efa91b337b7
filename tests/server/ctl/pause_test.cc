// `gradwirectl session pause` and `resume`, with a daemon and two members that train.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gradwire/client.h"
#include "tests/server/ctl/ctl_process.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::ctl {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::ExpectedReduction;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class PauseTest : public ::testing::Test {
 protected:
  // A small bucket, which travels eagerly, and a large one.
  const std::vector<ParameterSpec> parameters_ = {MakeParameter("a", 10),
                                                  MakeParameter("b", 70'000)};

  ClientOptions Options() const {
    return {.address = daemon_.address(),
            .session = "held",
            .world_size = 2,
            .parameters = parameters_};
  }
  Answer Tool(std::vector<std::string> words) const {
    words.insert(words.begin(), {"--address", daemon_.address()});
    return Ctl(std::move(words));
  }

  // One step with both buckets. Rank 0 runs `meanwhile` when the step is under way.
  absl::Status Step(Client& client, int rank, std::int64_t step,
                    const std::function<void(const Completion&)>& meanwhile = {}) const {
    Gradients a({parameters_[0]});
    Gradients b({parameters_[1]});
    a.Fill(rank, step);
    b.Fill(rank, step);
    GradBucket bucket_a = a.Bucket();
    GradBucket bucket_b = b.Bucket();
    const Completion first = client.AllReduce(bucket_a);
    const Completion second = client.AllReduce(bucket_b);
    if (rank == 0 && meanwhile) meanwhile(first);
    const auto verdict = client.EndStep();
    if (!verdict.ok()) return verdict.status();
    EXPECT_TRUE(first.done() && second.done());
    EXPECT_TRUE(a.bytes() == *ExpectedReduction({}, {parameters_[0]}, 2, step));
    EXPECT_TRUE(b.bytes() == *ExpectedReduction({}, {parameters_[1]}, 2, step));
    return absl::OkStatus();
  }
  // Between two steps, so that it takes hold at once.
  absl::Status Pause(Client& client, int rank, const std::vector<std::string>& options) const {
    if (absl::Status status = client.Barrier(); !status.ok()) return status;
    if (rank == 0) {
      std::vector<std::string> words = {"session", "pause", "held"};
      words.insert(words.end(), options.begin(), options.end());
      const Answer answer = Tool(words);
      EXPECT_EQ(answer.exit_code, 0);
      EXPECT_THAT(answer.text, StartsWith("paused session held before step 1; it goes on in "));
    }
    return client.Barrier();
  }

  const TestDaemon daemon_;
};

TEST_F(PauseTest, HoldsMembersUntilResumed) {
  ExpectAllOk(RunRanks(Options(), [&](Client& client, int rank) -> absl::Status {
    absl::Status status = Step(client, rank, 0);
    if (status.ok()) status = Pause(client, rank, {"--for", "1h", "--reason", "new switch"});
    if (status.ok()) {
      status = Step(client, rank, 1, [&](const Completion& first) {
        // Until rank 1's small bucket of this step is there, too: the daemon has all that it needs.
        constexpr std::uint64_t kBytesOfAStep = 4 * (10 + 70'000);
        EXPECT_TRUE(Eventually([&] {
          const auto session =
              nlohmann::json::parse(Tool({"-o", "json", "session", "get", "held"}).text);
          EXPECT_EQ(session.at("pause").at("holding"), true);
          const auto& bytes = session.at("members").at(1).at("contribution_bytes_total");
          return std::stoull(bytes.get<std::string>()) > kBytesOfAStep;
        }));
        EXPECT_FALSE(first.done());
        for (const char* command : {"why", "status"}) {
          EXPECT_THAT(Tool({command}).text,
                      AllOf(HasSubstr("held: paused by an operator for another "),
                            HasSubstr(": new switch")));
        }
        for (const char* command : {"sessions", "status"}) {
          EXPECT_THAT(Tool({command}).text, ContainsRegex("\nheld +paused +[0-9]+ +1 +2/2 "));
        }
        EXPECT_THAT(Tool({"session", "get", "held"}).text,
                    HasSubstr("\nstate       paused by an operator: new switch; "));
        const auto why = nlohmann::json::parse(Tool({"-o", "json", "why"}).text);
        EXPECT_THAT(why.at(0).at("why").get<std::string>(), HasSubstr(": new switch"));
        EXPECT_EQ(Tool({"session", "resume", "held"}).text, "resumed session held\n");
      });
    }
    if (status.ok()) status = Step(client, rank, 2);
    return status.ok() ? client.Leave() : status;
  }));
}

TEST_F(PauseTest, EndsByItself) {
  ExpectAllOk(RunRanks(Options(), [&](Client& client, int rank) -> absl::Status {
    absl::Status status = Step(client, rank, 0);
    const auto began = std::chrono::steady_clock::now();
    if (status.ok()) status = Pause(client, rank, {"--for", "1s"});
    if (status.ok()) status = Step(client, rank, 1);
    EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::seconds(1));
    return status.ok() ? client.Leave() : status;
  }));
}

TEST_F(PauseTest, AnswersClearly) {
  EXPECT_THAT(Tool({"session", "pause", "nobody"}).text, HasSubstr("has none named \"nobody\""));
  const Answer wrong = Tool({"session", "pause", "held", "--for", "25h"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.text, HasSubstr("25h; allowed are 1s to 24h"));
  const auto joining = RunRanks(
      {.address = daemon_.address(), .session = "held", .world_size = 1, .parameters = parameters_},
      [&](Client& client, int /*rank*/) -> absl::Status {
        EXPECT_EQ(Tool({"session", "resume", "held"}).exit_code, 1);
        EXPECT_EQ(Tool({"session", "pause", "held"}).exit_code, 0);
        EXPECT_EQ(Tool({"session", "pause", "held"}).exit_code, 0);
        EXPECT_EQ(Tool({"session", "evict", "held"}).exit_code, 0);
        return client.Barrier();
      });
  EXPECT_THAT(std::string(joining.front().message()), HasSubstr("an operator ended the session"));
  EXPECT_THAT(Tool({"why"}).text, Not(HasSubstr("paused")));
}

}  // namespace
}  // namespace gradwire::ctl

// gradwirectl with all daemons of a session, and with one of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/client.h"
#include "tests/server/ctl/ctl_process.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::ctl {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Two matrices, so that each of two shards has one.
const std::vector<ParameterSpec> kModel = {{.name = "w", .shape = {40, 30}},
                                           {.name = "v", .shape = {30, 40}}};

class SeveralTest : public ::testing::Test {
 protected:
  SeveralTest() {
    for (int i = 0; i < 2; ++i) daemons_.push_back(std::make_unique<TestDaemon>());
  }

  std::string All() const {
    return absl::StrCat(daemons_[0]->address(), ",", daemons_[1]->address());
  }
  ClientOptions Options(const std::string& address) const {
    return {
        .address = address,
        .session = "several",
        .world_size = 2,
        .parameters = kModel,
        .hook = *HookSpec::Parse("power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=2")};
  }
  static Answer Tool(const std::string& address, std::vector<std::string> words) {
    words.insert(words.begin(), {"--address", address});
    return Ctl(std::move(words));
  }
  Answer OnAll(std::vector<std::string> words) const { return Tool(All(), std::move(words)); }
  std::string Path(const std::string& name) const { return daemons_[0]->Path(name); }

  static absl::Status Step(Client& client, int rank, std::int64_t step) {
    Gradients gradients(kModel);
    gradients.Fill(rank, step);
    GradBucket bucket = gradients.Bucket();
    if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
    return client.EndStep().status();
  }
  // Two members that take `steps` steps; then rank 0 runs `between`, and all leave.
  void Train(const std::string& address, int steps,
             const std::function<void(Client&)>& between) const {
    ExpectAllOk(RunRanks(Options(address), [&](Client& client, int rank) -> absl::Status {
      for (int step = 0; step < steps; ++step) {
        if (absl::Status status = Step(client, rank, step); !status.ok()) return status;
      }
      if (absl::Status status = client.Barrier(); !status.ok()) return status;
      if (rank == 0) between(client);
      if (absl::Status status = client.Barrier(); !status.ok()) return status;
      return client.Leave();
    }));
  }

  std::vector<std::unique_ptr<TestDaemon>> daemons_;
};

TEST_F(SeveralTest, ASessionIsOne) {
  Train(All(), 3, [&](Client& client) {
    const Answer get = OnAll({"session", "get", "several"});
    EXPECT_EQ(get.exit_code, 0) << get.text;
    for (const auto& daemon : daemons_) EXPECT_THAT(get.text, HasSubstr(daemon->address()));
    EXPECT_THAT(get.text, AllOf(HasSubstr("3 applied, 0 skipped"), Not(HasSubstr("ask all"))));
    const auto status = nlohmann::json::parse(
        CtlOutput({"--address", All(), "-o", "json", "session", "get", "several"}).text);
    ASSERT_EQ(status["parts"].size(), 2U);
    std::uint64_t sum = 0;
    for (const auto& part : status["parts"]) {
      EXPECT_EQ(part["shard"]["tensors"], "1");
      EXPECT_EQ(part["shard"]["gradient_bytes"], "4800");
      // Its own parameter only.
      EXPECT_EQ(part["compression"].size(), 1U);
      sum += std::stoull(part["contribution_bytes_total"].get<std::string>());
    }
    EXPECT_EQ(status["contribution_bytes_total"], std::to_string(sum));
    EXPECT_EQ(sum, 2 * client.metrics().bytes_sent);
    EXPECT_EQ(status["compression"].size(), 2U);

    const Answer one = Tool(daemons_[1]->address(), {"session", "get", "several"});
    EXPECT_THAT(one.text,
                HasSubstr(absl::StrCat("this is shard 1 of 2; ask all with --address=", All())));
    EXPECT_THAT(Tool(daemons_[1]->address(), {"why"}).text, HasSubstr("this is shard 1 of 2"));
    const Answer all = OnAll({"status"});
    EXPECT_EQ(all.exit_code, 0) << all.text;
    EXPECT_THAT(all.text, ContainsRegex("\nseveral +running .* 2/2 "));
    EXPECT_THAT(all.text, HasSubstr(absl::StrCat(daemons_[1]->address(), ": gradwired ")));
    EXPECT_EQ(OnAll({"health"}).exit_code, 0);
  });
}

TEST_F(SeveralTest, ADaemonThatIsDownIsNamedAndTheOthersAreShown) {
  const std::string down = absl::StrCat("unix:", Path("none"));
  Train(daemons_[0]->address(), 1, [&](Client&) {
    const Answer status = Tool(absl::StrCat(daemons_[0]->address(), ",", down), {"status"});
    EXPECT_EQ(status.exit_code, 69) << status.text;
    EXPECT_THAT(status.text, AllOf(ContainsRegex("\nseveral +running "),
                                   HasSubstr(absl::StrCat("no daemon answers at ", down))));
  });
  EXPECT_EQ(Tool(absl::StrCat(down, ",", down, "x"), {"status"}).exit_code, 69);
  EXPECT_EQ(Tool("a:1,,b:1", {"status"}).exit_code, 2);
  EXPECT_EQ(Tool("a:1,b:1", {"doctor"}).exit_code, 2);
}

TEST_F(SeveralTest, AStateGoesFromSeveralDaemonsToOneAndBack) {
  const std::string file = Path("state");
  const std::string again = Path("again");
  Train(All(), 3, [&](Client& client) {
    const Answer exported = OnAll({"session", "export", "several", file});
    EXPECT_EQ(exported.exit_code, 0) << exported.text;
    EXPECT_EQ(Read(file), *client.ExportState());
    // One daemon's part is no state, and one daemon alone takes none.
    const Answer part = Tool(daemons_[0]->address(), {"session", "export", "several", again});
    EXPECT_EQ(part.exit_code, 1);
    EXPECT_THAT(part.text,
                AllOf(HasSubstr("the part of shard 1 of 2 is missing"), HasSubstr("[GW503]")));
    const Answer alone = Tool(daemons_[0]->address(), {"session", "import", "several", file});
    EXPECT_EQ(alone.exit_code, 1);
    EXPECT_THAT(alone.text, AllOf(HasSubstr(absl::StrCat("has 2 daemons (", All(), ")")),
                                  HasSubstr("[GW215]")));
  });
  Train(daemons_[0]->address(), 0, [&](Client&) {
    EXPECT_EQ(Tool(daemons_[0]->address(), {"session", "import", "several", file}).exit_code, 0);
    EXPECT_THAT(OnAll({"session", "import", "several", file}).text,
                HasSubstr("has one daemon, and the state goes to 2"));
    EXPECT_EQ(Tool(daemons_[0]->address(), {"session", "export", "several", again}).exit_code, 0);
  });
  Train(All(), 0, [&](Client& client) {
    const Answer imported = OnAll({"session", "import", "several", again});
    EXPECT_EQ(imported.exit_code, 0) << imported.text;
    EXPECT_THAT(imported.text, HasSubstr("its iteration is 3"));
    // But for the steps of the session, which begins with 0.
    const auto state = client.ExportState();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(*state, Read(again));
  });
}

// A limit on the size of files stands for the full disk.
TEST_F(SeveralTest, AnExportToAFullDiskLeavesTheOldFile) {
  const std::string file = Path("state");
  std::ofstream(file) << "old";
  Train(daemons_[0]->address(), 1, [&](Client&) {
    const Answer full =
        RunProgram({"/bin/sh", "-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh", GRADWIRE_CTL,
                    "--address", daemons_[0]->address(), "session", "export", "several", file});
    EXPECT_EQ(full.exit_code, 1);
    EXPECT_THAT(full.text, AllOf(HasSubstr(absl::StrCat("cannot write ", file)),
                                 HasSubstr("File too large"), HasSubstr("[GW702]")));
    EXPECT_EQ(Read(file), "old");
    // Nothing is wrong with the session.
    EXPECT_EQ(Tool(daemons_[0]->address(), {"session", "export", "several", file}).exit_code, 0);
    EXPECT_GT(Read(file).size(), 1024U);
  });
}

TEST_F(SeveralTest, PausesAndEndsASessionOnAllDaemons) {
  const auto told = RunRanks(Options(All()), [&](Client& client, int rank) -> absl::Status {
    if (absl::Status status = Step(client, rank, 0); !status.ok()) return status;
    if (absl::Status status = client.Barrier(); !status.ok()) return status;
    if (rank == 1) return Step(client, rank, 1);
    const Answer paused = OnAll({"session", "pause", "several", "--for", "1h"});
    EXPECT_EQ(paused.exit_code, 0) << paused.text;
    for (const auto& daemon : daemons_) {
      EXPECT_THAT(Tool(daemon->address(), {"session", "get", "several"}).text,
                  HasSubstr("by an operator"));
    }
    EXPECT_EQ(OnAll({"session", "resume", "several"}).exit_code, 0);
    const Answer ended = OnAll({"session", "evict", "several", "--reason", "the queue is needed"});
    EXPECT_EQ(ended.exit_code, 0) << ended.text;
    return Step(client, rank, 1);
  });
  for (const absl::Status& status : told) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("the queue is needed"));
  }
}

TEST_F(SeveralTest, ATraceHasAllDaemons) {
  const std::string file = Path("trace.json");
  std::atomic<bool> traced = false;
  ExpectAllOk(RunRanks(Options(All()), [&](Client& client, int rank) -> absl::Status {
    std::thread tool;
    if (rank == 0) {
      tool = std::thread([&] {
        const Answer answer =
            OnAll({"trace", "several", "--steps", "3", "--wait", "20", "--out", file});
        EXPECT_EQ(answer.exit_code, 0) << answer.text;
        traced = true;
      });
    }
    // Rank 0 says when the last step is.
    absl::Status status;
    bool last = false;
    for (int step = 0; status.ok() && !last; ++step) {
      status = Step(client, rank, step);
      last = traced;
      if (status.ok()) status = client.Broadcast(0, &last, sizeof last);
    }
    if (tool.joinable()) tool.join();
    return status.ok() ? client.Leave() : status;
  }));
  const auto written = nlohmann::json::parse(Read(file));
  EXPECT_EQ(written["otherData"]["daemons"], 2);
  EXPECT_EQ(written["otherData"]["complete steps"], 3);
}

}  // namespace
}  // namespace gradwire::ctl

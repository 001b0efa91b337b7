// Real daemons that record, and what is computed from their recordings again. Members are threads,
// some with their gradients in shared memory, where results are written over contributions.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "server/record/record_directory.h"
#include "server/record/replay.h"
#include "tests/conformance/grouped_memory.h"
#include "tests/testing/fault_relay.h"
#include "tests/testing/gradients.h"
#include "tests/testing/host_communicator.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::FaultRelay;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::Process;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TemporaryFolder;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kMembers = 3;
constexpr int kSteps = 6;
constexpr int kKept = 4;
constexpr std::size_t kElements = 50'001;  // several chunks, the last one odd
constexpr std::size_t kIntoPage = 64;      // most of malloc's memory begins inside a page

// Matrices for PowerSGD, a bucket of their own for what it does not compress, and one without
// elements.
std::vector<std::vector<ParameterSpec>> Buckets() {
  ParameterSpec matrix = MakeParameter("m", 120 * 70);
  matrix.shape = {120, 70};
  return {{MakeParameter("w", kElements)},
          {matrix, MakeParameter("b", 70)},
          {MakeParameter("nothing", 0)}};
}

// How the recording is looked at: one after the other, in this process.
std::vector<server::ReplayReport> ReplayAll(const std::string& directory) {
  std::vector<server::ReplayReport> reports;
  const auto records = server::ListRecords(directory);
  EXPECT_TRUE(records.ok()) << records.status();
  for (const server::RecordPath& record : *records) {
    const auto source = server::OpenRecord(record.path);
    EXPECT_TRUE(source.ok()) << source.status();
    const auto report = server::Replay(**source);
    EXPECT_TRUE(report.ok()) << record.path << ": " << report.status();
    if (report.ok()) reports.push_back(*report);
  }
  return reports;
}

// One step over all buckets. With `share`, the large one lies in memory that the daemon maps.
absl::Status Step(Client& client, int rank, std::int64_t step, bool share) {
  std::vector<std::unique_ptr<Gradients>> gradients;
  std::vector<GradBucket> buckets;
  std::vector<std::byte> own;
  std::shared_ptr<void> shared;  // dropped before the memory
  for (const auto& parameters : Buckets()) {
    gradients.push_back(std::make_unique<Gradients>(parameters));
    gradients.back()->Fill(rank, step);
    buckets.push_back(gradients.back()->Bucket());
  }
  if (share) {
    const std::vector<std::byte>& bytes = gradients.front()->bytes();
    own.resize(bytes.size() + kIntoPage);
    std::copy(bytes.begin(), bytes.end(), own.begin() + kIntoPage);
    TensorView view = buckets.front().buffer();
    view.data = own.data() + kIntoPage;
    if (absl::Status set = buckets.front().set_buffer(view); !set.ok()) return set;
    auto may = client.ShareGradients(view);
    if (may.ok()) shared = *std::move(may);
  }
  std::vector<Completion> completions;
  for (GradBucket& bucket : buckets) completions.push_back(client.AllReduce(bucket));
  for (Completion& completion : completions) {
    if (absl::Status done = completion.Wait(); !done.ok()) return done;
  }
  // Otherwise nothing would be written over what is recorded.
  EXPECT_EQ(client.Report().front().in_place, shared != nullptr);
  return client.EndStep().status();
}

ClientOptions Options(const std::string& address, const std::string& hook,
                      const std::string& session = "recorded") {
  ClientOptions options{.address = address,
                        .session = session,
                        .world_size = kMembers,
                        .hook = *HookSpec::Parse(hook),
                        .step_timeout = absl::Seconds(20)};
  for (const auto& bucket : Buckets()) {
    options.parameters.insert(options.parameters.end(), bucket.begin(), bucket.end());
  }
  return options;
}

// Rank 0 shares its gradients, rank 1 stages them in shared memory, rank 2 sends them. `before` is
// called by rank 0, before each step.
void Train(const ClientOptions& options, const std::function<void()>& before = {}) {
  ExpectAllOk(RunRanks(
      options,
      [&](Client& client, int rank) -> absl::Status {
        for (std::int64_t step = 0; step < kSteps; ++step) {
          if (rank == 0 && before) before();
          if (absl::Status done = Step(client, rank, step, rank == 0); !done.ok()) return done;
        }
        return client.Leave();
      },
      [](ClientOptions& one, int rank) { one.shared_memory = rank != 2; }));
}

server::ServerOptions Recording(const std::string& directory) {
  server::ServerOptions options;
  options.chunk_bytes = std::size_t{16} << 10;
  options.window_chunks = 2;
  options.record = directory;
  options.record_steps = kKept;
  return options;
}

struct Case {
  const char* name;
  const char* hook;
  const char* loss;  // on_coordinator_loss; with "resume", members say READY before a step ends
};

class RecordTest : public ::testing::TestWithParam<Case> {};

std::string NameOf(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Hooks, RecordTest,
    ::testing::Values(
        Case{"no", "no", "fail"}, Case{"ready", "no", "resume"}, Case{"fp16", "fp16", "fail"},
        Case{"bf16", "bf16", "resume"}, Case{"noop", "noop", "fail"},
        Case{"power_sgd",
             "power_sgd,start_powerSGD_iter=2,matrix_approximation_rank=2,min_compression_rate=1",
             "fail"},
        Case{"batched", "batched_power_sgd,start_powerSGD_iter=2", "resume"}),
    NameOf);

TEST_P(RecordTest, TheLastStepsAreComputedAgainAsTheyWere) {
  const TemporaryFolder folder;
  {
    server::ServerOptions options = Recording(folder.path());
    options.on_coordinator_loss = GetParam().loss;
    TestDaemon daemon(options);
    Train(Options(daemon.address(), GetParam().hook));
  }  // writes the rest
  const std::vector<server::ReplayReport> reports = ReplayAll(folder.path());
  ASSERT_EQ(reports.size(), static_cast<std::size_t>(kKept));
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const server::ReplayReport& report = reports[i];
    EXPECT_EQ(report.step.step, kSteps - kKept + static_cast<int>(i));
    EXPECT_EQ(report.differences, 0u) << report.step.step;
    EXPECT_EQ(report.buckets, Buckets().size());
    if (std::string(GetParam().hook) == "noop") continue;
    EXPECT_EQ(report.members, static_cast<std::size_t>(kMembers));
    EXPECT_GT(report.chunks, 1u);
  }
}

TEST(RecordShardsTest, EachDaemonRecordsWhatItReduces) {
  for (const char* const hook : {"no", "power_sgd,start_powerSGD_iter=1,min_compression_rate=1"}) {
    const TemporaryFolder folder;
    {
      std::vector<std::unique_ptr<TestDaemon>> daemons;
      for (int i = 0; i < 2; ++i) {
        daemons.push_back(std::make_unique<TestDaemon>(Recording(folder.path())));
      }
      Train(Options(absl::StrCat(daemons[0]->address(), ",", daemons[1]->address()), hook));
    }
    const std::vector<server::ReplayReport> reports = ReplayAll(folder.path());
    ASSERT_EQ(reports.size(), 2u * kKept) << hook;
    std::size_t chunks[2] = {0, 0};
    for (const server::ReplayReport& report : reports) {
      EXPECT_EQ(report.differences, 0u) << hook << " step " << report.step.step;
      EXPECT_EQ(report.step.shards, 2u);
      chunks[report.step.shard] += report.chunks;
    }
    EXPECT_GT(chunks[0], 0u);
    EXPECT_GT(chunks[1], 0u);
  }
}

// A leaf daemon is a member that stands for several trainers.
TEST(RecordLeavesTest, TheRootRecordsWhatLeavesAddUp) {
  const TemporaryFolder folder;
  {
    TestDaemon root(Recording(folder.path()));
    std::vector<std::unique_ptr<TestDaemon>> leaves;
    for (int i = 0; i < 2; ++i) {
      server::ServerOptions leaf;
      leaf.upstream = root.address();
      leaves.push_back(std::make_unique<TestDaemon>(leaf));
    }
    ClientOptions options = Options(root.address(), "fp16");
    options.world_size = 4;
    ExpectAllOk(RunRanks(
        options,
        [](Client& client, int rank) -> absl::Status {
          for (std::int64_t step = 0; step < kSteps; ++step) {
            if (absl::Status done = Step(client, rank, step, false); !done.ok()) return done;
          }
          return client.Leave();
        },
        [&](ClientOptions& one, int rank) {
          one.address = leaves[static_cast<std::size_t>(rank) / 2]->address();
          one.local_rank = rank % 2;
          one.local_world_size = 2;
        }));
  }
  const auto reports = ReplayAll(folder.path());
  ASSERT_EQ(reports.size(), static_cast<std::size_t>(kKept));
  for (const server::ReplayReport& report : reports) {
    EXPECT_EQ(report.differences, 0u);
    EXPECT_EQ(report.members, 2u);  // the leaves
  }
}

// Each group adds up its gradients by itself; who has a share contributes it for the group.
TEST(RecordGroupsTest, TheSharesOfNodeGroupsAreRecorded) {
  const TemporaryFolder folder;
  const std::vector<std::string> groups = {"a", "a", "b"};
  testing::HostMeetingPlace place;
  {
    TestDaemon daemon(Recording(folder.path()));
    std::vector<std::thread> members;
    for (int rank = 0; rank < kMembers; ++rank) {
      members.emplace_back([&, rank] {
        ClientOptions options = Options(daemon.address(), "no");
        options.rank = rank;
        auto client =
            conformance::JoinGroup(options, groups[static_cast<std::size_t>(rank)], place);
        ASSERT_TRUE(client.ok()) << client.status();
        for (std::int64_t step = 0; step < kSteps; ++step) {
          EXPECT_EQ(Step(**client, rank, step, false), absl::OkStatus());
        }
        EXPECT_EQ((*client)->Leave(), absl::OkStatus());
      });
    }
    for (std::thread& member : members) member.join();
  }
  const auto reports = ReplayAll(folder.path());
  ASSERT_EQ(reports.size(), static_cast<std::size_t>(kKept));
  for (const server::ReplayReport& report : reports) {
    EXPECT_EQ(report.differences, 0u);
    EXPECT_GE(report.members, 2u);
  }
}

// Members come back, and what they have not acknowledged is sent again.
TEST(RecordFaultsTest, StepsWhoseConnectionsBreakAreRecorded) {
  const TemporaryFolder folder;
  {
    TestDaemon daemon(Recording(folder.path()));
    const auto relay = FaultRelay::Start(daemon.Path("relay"), daemon.socket());
    ASSERT_TRUE(relay.ok()) << relay.status();
    Train(Options((*relay)->address(), "no"), [&] { (*relay)->CutAfter(250'000); });
    EXPECT_GE((*relay)->cuts(), kSteps - 1);
  }
  const auto reports = ReplayAll(folder.path());
  ASSERT_EQ(reports.size(), static_cast<std::size_t>(kKept));
  for (const server::ReplayReport& report : reports) EXPECT_EQ(report.differences, 0u);
}

TEST(RecordFaultsTest, AStepThatIsSkippedIsRecorded) {
  const TemporaryFolder folder;
  {
    TestDaemon daemon(Recording(folder.path()));
    ClientOptions options{.address = daemon.address(),
                          .session = "poisoned",
                          .world_size = 2,
                          .parameters = {MakeParameter("w", 5000)}};
    ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
      Gradients gradients(options.parameters);
      gradients.Fill(rank, 0);
      if (rank == 1) gradients.Poison(7);
      GradBucket bucket = gradients.Bucket();
      if (absl::Status done = client.AllReduce(bucket).Wait(); !done.ok()) return done;
      const auto verdict = client.EndStep();
      if (!verdict.ok()) return verdict.status();
      EXPECT_EQ(*verdict, Verdict::kSkip);
      return client.Leave();
    }));
  }
  const auto reports = ReplayAll(folder.path());
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].differences, 0u);
  EXPECT_EQ(reports[0].verdict, Verdict::kSkip);
}

// A session may outlive its last member's Leave by a moment, and then it does not count as ended.
TEST(RecordSessionsTest, SessionsThatEndedLongAgoLoseTheirRecordings) {
  const TemporaryFolder folder;
  server::ServerOptions recording = Recording(folder.path());
  recording.record_sessions = 2;
  TestDaemon daemon(recording);
  const auto run = [&] { Train(Options(daemon.address(), "no")); };
  const auto sessions = [&] {
    const auto entries = std::filesystem::directory_iterator(folder.path());
    return std::distance(begin(entries), end(entries));
  };
  for (int i = 0; i < 3; ++i) run();
  EXPECT_EQ(sessions(), 3);
  EXPECT_TRUE(Eventually([&] {
    run();
    return sessions() == 3;
  }));
}

TEST(RecordFaultsTest, ADirectoryThatVanishesStopsNoTraining) {
  const TemporaryFolder folder;
  const std::string directory = folder / "record";
  std::filesystem::create_directory(directory);
  TestDaemon daemon(Recording(directory));
  std::filesystem::remove(directory);
  Train(Options(daemon.address(), "no"));
  EXPECT_FALSE(std::filesystem::exists(directory));
}

TEST(RecordFaultsTest, TheDaemonDoesNotStartWithoutTheDirectoryOrAsALeaf) {
  const TemporaryFolder folder;
  server::ServerOptions options = Recording(folder / "missing");
  options.listen = {"unix:" + folder / "socket"};
  EXPECT_THAT(server::Server::Start(options).status().message(),
              AllOf(HasSubstr("record is \""), HasSubstr("No such file or directory")));
  options.record = folder.path();
  options.upstream = "localhost:1";
  EXPECT_THAT(server::Server::Start(options).status().message(),
              HasSubstr("upstream is localhost:1; allowed with upstream: \"\""));
}

// ---- gradwirectl replay

std::string Output(const std::vector<std::string>& words, const TemporaryFolder& folder,
                   int& code) {
  std::vector<std::string> all = {GRADWIRE_CTL};
  all.insert(all.end(), words.begin(), words.end());
  const auto process = Process::Start(all, folder / "log");
  EXPECT_TRUE(process.ok()) << process.status();
  const auto status = (*process)->Wait(absl::Seconds(60));
  code = status && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
  return (*process)->Log();
}

class ReplayCommandTest : public ::testing::Test {
 protected:
  // Two runs of the same training, recorded in `a` and `b`.
  ReplayCommandTest() {
    for (const char* const name : {"a", "b"}) {
      std::filesystem::create_directory(records_ / name);
      TestDaemon daemon(Recording(records_ / name));
      Train(Options(daemon.address(), "no"));
    }
  }
  std::string PathOf(const char* run, int step) const {
    return server::ListRecords(records_ / run)->at(static_cast<std::size_t>(step) - 2).path;
  }

  const TemporaryFolder records_;
  const TemporaryFolder logs_;
};

TEST_F(ReplayCommandTest, SaysThatAllIsAsRecorded) {
  int code = -1;
  const std::string text = Output({"replay", records_ / "a"}, logs_, code);
  EXPECT_EQ(code, 0) << text;
  EXPECT_THAT(text, AllOf(HasSubstr("session recorded, generation "),
                          HasSubstr("step 5: 3 buckets, 3 members, digest 0x"),
                          HasSubstr(": as recorded\n"), HasSubstr("4 of 4 steps as recorded")));
  const std::string json = Output({"replay", PathOf("a", 3), "-o", "json"}, logs_, code);
  EXPECT_EQ(code, 0) << json;
  EXPECT_THAT(json, AllOf(HasSubstr("\"step\":3"), HasSubstr("\"as_recorded\":true")));
}

TEST_F(ReplayCommandTest, NamesADamagedFileAndReplaysTheOthers) {
  const std::string path = PathOf("a", 4);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  constexpr std::streamoff kPlace = 20'000;
  const int byte = file.seekg(kPlace).get();
  file.seekp(kPlace).put(static_cast<char>(byte ^ 1));
  file.close();
  int code = -1;
  const std::string text = Output({"replay", records_ / "a"}, logs_, code);
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text, AllOf(HasSubstr(path + ": record "), HasSubstr("is damaged: its checksum is"),
                          HasSubstr("[GW702]"), HasSubstr("3 of 4 steps as recorded")));
}

TEST_F(ReplayCommandTest, ComparesTwoRuns) {
  int code = -1;
  std::string text = Output({"replay", records_ / "a", "--compare", records_ / "b"}, logs_, code);
  EXPECT_EQ(code, 0) << text;
  EXPECT_THAT(text, HasSubstr("steps 2 to 5: the same"));
  // Step 3's contributions as step 4's: the step is another one, so the files cannot be compared.
  std::filesystem::copy_file(PathOf("b", 3), PathOf("b", 4),
                             std::filesystem::copy_options::overwrite_existing);
  text = Output({"replay", records_ / "a", "--compare", records_ / "b"}, logs_, code);
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text, HasSubstr("the step is 4 in the one and 3 in the other"));
  text =
      Output({"replay", records_ / "a", records_ / "b", "--compare", records_ / "b"}, logs_, code);
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text, HasSubstr("recordings of several sessions"));
  text = Output({"replay", logs_.path()}, logs_, code);
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text, HasSubstr("has no recording"));
}

}  // namespace
}  // namespace gradwire

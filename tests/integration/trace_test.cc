// A running session's steps are recorded, and the tool writes them as a trace.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/client.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "server/services/trace_stream.h"
#include "tests/testing/gradients.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::testing::HasSubstr;
using testing::TestDaemon;

constexpr int kLate = 1;
constexpr std::int64_t kLateNs = 100'000'000;

ClientOptions Options(const TestDaemon& daemon, int world_size, const std::string& hook) {
  ClientOptions options{.address = daemon.address(),
                        .session = "s",
                        .world_size = world_size,
                        .parameters = {testing::MakeParameter("bias", 1000),
                                       {.name = "layer1.weight", .shape = {256, 512}},
                                       {.name = "layer2.weight", .shape = {512, 1024}}}};
  const auto spec = HookSpec::Parse(hook);
  EXPECT_TRUE(spec.ok()) << spec.status();
  options.hook = *spec;
  return options;
}

// Trains, two buckets a step, until it is over; all ranks do the same steps.
absl::Status Train(Client& client, int rank, const ClientOptions& options, std::int64_t late_ns,
                   const std::atomic<bool>& over) {
  testing::Gradients last({options.parameters[2]});
  testing::Gradients first({options.parameters[0], options.parameters[1]});
  for (std::int64_t step = 0;; ++step) {
    float stop = rank == 0 && over ? 1 : 0;
    absl::Status shared = client.Broadcast(0, &stop, sizeof stop);
    if (!shared.ok() || stop != 0) return shared;
    std::this_thread::sleep_for(std::chrono::nanoseconds(late_ns));
    last.Fill(rank, step);
    first.Fill(rank, step);
    GradBucket early = last.Bucket();
    GradBucket late = first.Bucket();
    const Completion one = client.AllReduce(early);
    const Completion two = client.AllReduce(late);
    for (const Completion& reduced : {one, two}) {
      if (absl::Status status = reduced.Wait(); !status.ok()) return status;
    }
    if (auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
  }
}

// A session that trains until the object ends.
class Training {
 public:
  Training(const TestDaemon& daemon, int world_size, const std::string& hook,
           std::int64_t late_ns = kLateNs)
      : members_([this, late_ns, options = Options(daemon, world_size, hook)] {
          testing::ExpectAllOk(testing::RunRanks(options, [&](Client& client, int rank) {
            began_ = true;
            return Train(client, rank, options, rank == kLate ? late_ns : 0, over_);
          }));
        }) {
    EXPECT_TRUE(testing::Eventually([this] { return began_.load(); }));
  }
  ~Training() {
    over_ = true;
    members_.join();
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

 private:
  std::atomic<bool> began_ = false;
  std::atomic<bool> over_ = false;
  std::thread members_;
};

std::unique_ptr<v1::AdminService::Stub> Admin(const TestDaemon& daemon) {
  return v1::AdminService::NewStub(
      grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials()));
}

v1::TraceSessionRequest Request(const std::string& session, int steps, int wait_s = 20) {
  v1::TraceSessionRequest request;
  request.set_session(session);
  request.set_steps(steps);
  request.mutable_wait()->set_seconds(wait_s);
  return request;
}

struct Traced {
  v1::TraceSummary summary;
  std::vector<v1::TimelineEvent> events;
  std::size_t largest = 0;  // of the messages
  grpc::Status status;
};

Traced Trace(v1::AdminService::Stub& admin, const v1::TraceSessionRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const auto reader = admin.TraceSession(&context, request);
  Traced traced;
  for (v1::TraceSessionResponse piece; reader->Read(&piece);) {
    if (piece.has_summary()) traced.summary = piece.summary();
    traced.events.insert(traced.events.end(), piece.events().begin(), piece.events().end());
    traced.largest = std::max(traced.largest, piece.ByteSizeLong());
  }
  traced.status = reader->Finish();
  return traced;
}

using StepOfRank = std::pair<std::int64_t, int>;

TEST(TraceTest, ShowsEachRoundOfEachMemberWithinItsStep) {
  const TestDaemon daemon;
  const auto admin = Admin(daemon);
  const Training training(daemon, 2, "power_sgd,start_powerSGD_iter=0");
  const Traced traced = Trace(*admin, Request("s", 3));
  ASSERT_TRUE(traced.status.ok()) << traced.status.error_message();
  EXPECT_EQ(traced.summary.complete_steps(), 3);
  EXPECT_EQ(traced.summary.end(), v1::TRACE_END_COMPLETE);
  EXPECT_EQ(traced.summary.hook().comm_hook(), "power_sgd");

  std::map<StepOfRank, const v1::TimelineEvent*> steps;
  std::map<StepOfRank, std::uint32_t> rounds;  // that were announced
  std::map<StepOfRank, std::uint32_t> contributed;
  std::map<std::int64_t, int> sums;
  for (const v1::TimelineEvent& event : traced.events) {
    const StepOfRank key(event.step(), event.rank());
    EXPECT_GE(event.step(), traced.summary.first_step());
    EXPECT_LT(event.step(), traced.summary.first_step() + 3);
    EXPECT_GE(event.end_ns(), event.begin_ns());
    if (event.kind() == v1::TIMELINE_KIND_MEMBER_STEP) steps[key] = &event;
    if (event.kind() == v1::TIMELINE_KIND_GRANT) rounds[key] += event.rounds();
    if (event.kind() == v1::TIMELINE_KIND_CONTRIBUTE) ++contributed[key];
    if (event.kind() == v1::TIMELINE_KIND_SUM) ++sums[event.step()];
  }
  ASSERT_EQ(steps.size(), 6U);
  EXPECT_EQ(contributed, rounds);
  for (const auto& [step, count] : sums) EXPECT_EQ(count, 4) << "two buckets of two rounds";
  for (const v1::TimelineEvent& event : traced.events) {
    if (event.rank() < 0) continue;
    const v1::TimelineEvent& step = *steps.at({event.step(), event.rank()});
    EXPECT_GE(event.begin_ns(), step.begin_ns()) << event.ShortDebugString();
    EXPECT_LE(event.end_ns(), step.end_ns()) << event.ShortDebugString();
  }
  // Nothing of a step is summed before the late member has begun it, which the other had before.
  for (std::int64_t step = traced.summary.first_step(); sums.count(step) > 0; ++step) {
    const std::int64_t late = steps.at({step, kLate})->begin_ns();
    EXPECT_LT(steps.at({step, 1 - kLate})->begin_ns(), late);
    for (const v1::TimelineEvent& event : traced.events) {
      if (event.step() != step) continue;
      if (event.kind() == v1::TIMELINE_KIND_SUM) {
        EXPECT_GE(event.begin_ns(), late);
      }
      if (event.kind() == v1::TIMELINE_KIND_GRANT && event.rank() != kLate) {
        EXPECT_LT(event.begin_ns(), late);
      }
    }
  }
}

TEST(TraceTest, TheToolWritesAFileForTheViewer) {
  const TestDaemon daemon;
  const Training training(daemon, 3, "power_sgd,start_powerSGD_iter=0");
  const std::string file = daemon.Path("trace.json");
  const auto tool = testing::Process::Start(
      {GRADWIRE_CTL, "--address", daemon.address(), "trace", "s", "--steps", "2", "--out", file},
      daemon.Path("log"));
  ASSERT_TRUE(tool.ok()) << tool.status();
  EXPECT_EQ((*tool)->Wait(absl::Seconds(60)), 0) << (*tool)->Log();
  EXPECT_THAT((*tool)->Log(), HasSubstr("traced 2 of 2 steps\n"));
  std::ifstream stream(file);
  const auto trace = nlohmann::json::parse(stream);
  std::set<std::string> processes;
  std::set<std::string> names;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") processes.insert(event["args"]["name"]);
    if (event["ph"] == "X") names.insert(event["name"]);
  }
  EXPECT_EQ(processes,
            (std::set<std::string>{"daemon: session s, power_sgd", "rank 0", "rank 1", "rank 2"}));
  for (const char* name : {"layer2.weight", "bias (+1)", "round 1 {uncompressed, P}: contribute",
                           "round 1 {uncompressed, P}: waits for rank 1", "round 2 {Q}: result"}) {
    EXPECT_EQ(names.count(name), 1U) << name;
  }
}

TEST(TraceTest, RefusesWhatItCannotRecord) {
  const TestDaemon daemon;
  const auto admin = Admin(daemon);
  const Training training(daemon, 2, "no");
  const auto refused = [&](const v1::TraceSessionRequest& request, grpc::StatusCode code,
                           const std::string& why) {
    const grpc::Status status = Trace(*admin, request).status;
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(why));
  };
  refused(Request("nobody", 1), grpc::StatusCode::NOT_FOUND, "\"nobody\"");
  refused(Request("s", 0), grpc::StatusCode::INVALID_ARGUMENT, "steps is 0; allowed are 1 to 100");
  refused(Request("s", 101), grpc::StatusCode::INVALID_ARGUMENT, "steps is 101");
  refused(Request("s", 1, 0), grpc::StatusCode::INVALID_ARGUMENT, "wait is 0");
  refused(Request("s", 1, 601), grpc::StatusCode::INVALID_ARGUMENT, "at most 10m");

  // The first is refused nothing; when its caller goes away, there is room for another.
  grpc::ClientContext first;
  const auto reader = admin->TraceSession(&first, Request("s", 100, 600));
  bool second = false;
  EXPECT_TRUE(testing::Eventually([&] {
    second = Trace(*admin, Request("s", 1)).status.error_code() == grpc::StatusCode::ALREADY_EXISTS;
    return second;
  }));
  first.TryCancel();
  EXPECT_TRUE(testing::Eventually([&] { return Trace(*admin, Request("s", 1)).status.ok(); }));
}

// Callers that never read hold what was recorded, which has a bound, and only a few may. The
// session goes on.
TEST(TraceTest, CallersThatDoNotReadAreFew) {
  const TestDaemon daemon;
  const auto admin = Admin(daemon);
  grpc::ChannelArguments little;  // in flight
  little.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  little.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  const auto slow = v1::AdminService::NewStub(
      grpc::CreateCustomChannel(daemon.address(), grpc::InsecureChannelCredentials(), little));
  const Training training(daemon, 4, "no", /*late_ns=*/0);
  std::vector<std::unique_ptr<grpc::ClientContext>> calls;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::TraceSessionResponse>>> readers;
  const auto probe = [&] { return Trace(*admin, Request("s", 1)).status; };
  for (int i = 0; i < server::Recordings::kMost; ++i) {
    calls.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(slow->TraceSession(calls.back().get(), Request("s", 100)));
    readers.back()->WaitForInitialMetadata();  // comes with the first piece
  }
  EXPECT_EQ(probe().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (const auto& call : calls) call->TryCancel();
  EXPECT_TRUE(testing::Eventually([&] { return probe().ok(); }));
}

struct Answer {
  std::optional<int> status;
  std::string text;
};

Answer Tool(const TestDaemon& daemon, std::vector<std::string> words) {
  const testing::TemporaryFolder folder;
  words.insert(words.begin(), {GRADWIRE_CTL, "--address", daemon.address()});
  const auto tool = testing::Process::Start(words, folder / "log");
  if (!tool.ok()) return {.status = {}, .text = tool.status().ToString()};
  const std::optional<int> status = (*tool)->Wait(absl::Seconds(60));
  return {.status = status, .text = (*tool)->Log()};
}

constexpr int kFailed = 1 << 8;  // exit code 1

TEST(TraceTest, TheToolSaysWhatASessionWithoutStepsIsDoing) {
  const TestDaemon daemon;
  const std::string file = daemon.Path("trace.json");
  const std::vector<std::string> words = {"trace", "s", "--wait", "0.2", "--out", file};
  ClientOptions options = Options(daemon, 2, "no");
  options.rank = 0;
  std::thread first([&, options] {
    const auto client = Client::Join(options);
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_TRUE((*client)->Barrier().ok());
    EXPECT_EQ(Tool(daemon, {"session", "pause", "s", "--reason", "new switch"}).status, 0);
    const Answer paused = Tool(daemon, words);
    EXPECT_EQ(paused.status, kFailed);
    EXPECT_THAT(
        paused.text,
        ::testing::StartsWith("gradwirectl: session \"s\" is paused by an operator: new switch; "));
    EXPECT_THAT(paused.text, HasSubstr("; step 0 did not end in time, and --wait gives more; "
                                       "session \"s\" is paused by an operator: new switch; "));
    EXPECT_EQ(Tool(daemon, {"session", "resume", "s"}).status, 0);
    EXPECT_TRUE((*client)->Barrier().ok());
    EXPECT_TRUE((*client)->Leave().ok());
  });
  EXPECT_TRUE(testing::Eventually([&] {
    return Tool(daemon, {"session", "get", "s"}).status == 0;
  }));
  EXPECT_EQ(Tool(daemon, words).text,
            "gradwirectl: session \"s\" is joining: waits for rank 1 of 2 to join; waiting up to "
            "200ms for its steps\n"
            "gradwirectl: traced 0 of 5 steps; step 0 did not end in time, and --wait gives more; "
            "session \"s\" is joining: waits for rank 1 of 2 to join; nothing is written [GW705]\n"
            "Run gradwirectl explain GW705 for what to do.\n");
  // A file that cannot be written is known before the wait, of which there is more than the test's.
  const Answer nowhere =
      Tool(daemon, {"trace", "s", "--wait", "600", "--out", daemon.Path("no/such")});
  EXPECT_EQ(nowhere.status, kFailed);
  EXPECT_THAT(nowhere.text, ::testing::AllOf(HasSubstr("no/such"), HasSubstr("[GW702]")));
  options.rank = 1;
  const auto client = Client::Join(options);
  EXPECT_TRUE(client.ok()) << client.status();
  if (client.ok()) {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE((*client)->Barrier().ok());
    EXPECT_TRUE((*client)->Leave().ok());
  }
  first.join();
  EXPECT_FALSE(std::ifstream(file).good());
}

// No step comes: the call ends with what there is.
TEST(TraceTest, EndsWhenTheTimeIsOver) {
  const TestDaemon daemon;
  const auto admin = Admin(daemon);
  ClientOptions options = Options(daemon, 2, "no");
  testing::ExpectAllOk(testing::RunRanks(options, [&](Client& client, int rank) -> absl::Status {
    if (rank == 0) {
      const Traced traced = Trace(*admin, Request("s", 1, 1));
      EXPECT_TRUE(traced.status.ok()) << traced.status.error_message();
      EXPECT_EQ(traced.summary.end(), v1::TRACE_END_TIME);
      EXPECT_EQ(traced.summary.complete_steps(), 0);
      EXPECT_TRUE(traced.events.empty());
    }
    return client.Barrier();
  }));
}

}  // namespace
}  // namespace gradwire

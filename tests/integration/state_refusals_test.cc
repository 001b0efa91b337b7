// What is no time or no state for an import, and what an operator reads about a session's state.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "proto/wire/state_calls.h"
#include "tests/integration/saved_training.h"
#include "tests/testing/ranks.h"

namespace gradwire::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

v1::SessionStatus GetStatus(v1::AdminService::Stub& admin) {
  grpc::ClientContext context;
  v1::GetSessionRequest request;
  request.set_session("state");
  v1::GetSessionResponse response;
  const grpc::Status status = admin.GetSession(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.session();
}

std::unique_ptr<v1::AdminService::Stub> Admin(const TestDaemon& daemon) {
  return v1::AdminService::NewStub(
      grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials()));
}

void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& why,
                   const std::string& what) {
  EXPECT_EQ(status.code(), code) << what << ": " << status;
  EXPECT_THAT(Message(status), HasSubstr(why)) << what;
}

// What no session takes, whatever it is.
void ExpectDamagedRefused(const std::function<absl::Status(const std::string&)>& load,
                          const std::string& good) {
  for (std::size_t size = 0; size < good.size(); size += good.size() / 17 + 1) {
    ExpectRefused(load(good.substr(0, size)), absl::StatusCode::kInvalidArgument,
                  "state: ", absl::StrCat("cut to ", size));
  }
  for (std::size_t at = 0; at < good.size(); at += good.size() / 37 + 1) {
    std::string bad = good;
    bad[at] = static_cast<char>(static_cast<unsigned char>(bad[at]) ^ (1U << at % 8));
    ExpectRefused(load(bad), absl::StatusCode::kInvalidArgument,
                  "state: ", absl::StrCat("flipped at ", at));
  }
  ExpectRefused(load("hello"), absl::StatusCode::kInvalidArgument, "state: ", "no file");
}

// Everything that is wrong while no step is open.
void TryWrongStates(Client& client, const Checkpoint& good, const Checkpoint& other_layout,
                    const Checkpoint& other_rank) {
  const auto import = [&](const std::string& state) { return client.ImportState(state); };
  const auto load = [&](const std::string& state) { return client.LoadStateDict(state); };
  ExpectDamagedRefused(import, good.state);
  ExpectDamagedRefused(load, good.dicts[0]);
  ExpectRefused(import(std::string(8 << 20, ' ')), absl::StatusCode::kInvalidArgument,
                "cannot be larger", "too large");
  ExpectRefused(import(other_layout.state), absl::StatusCode::kFailedPrecondition, "linear",
                "another layout");
  ExpectRefused(import(other_rank.state), absl::StatusCode::kFailedPrecondition,
                "matrix_approximation_rank=3", "another rank");
  ExpectRefused(import(good.dicts[0]), absl::StatusCode::kInvalidArgument, "format",
                "a member's state");
  ExpectRefused(load(good.state), absl::StatusCode::kInvalidArgument, "format",
                "the coordinator's state");
  const auto rank = static_cast<std::size_t>(client.rank());
  ExpectRefused(load(other_layout.dicts[rank]), absl::StatusCode::kInvalidArgument, "linear",
                "a member of another layout");
  ExpectRefused(load(good.dicts[1 - rank]), absl::StatusCode::kFailedPrecondition,
                absl::StrCat("saved by rank ", 1 - rank, "; rank ", rank), "another member's");
  ExpectRefused(client.SetLossScale(0), absl::StatusCode::kInvalidArgument, "scale is 0", "zero");
  ExpectRefused(client.SetLossScale(std::numeric_limits<double>::quiet_NaN()),
                absl::StatusCode::kInvalidArgument, "scale is nan", "NaN");
}

class StateRefusalsOf : public ::testing::TestWithParam<std::size_t> {};

INSTANTIATE_TEST_SUITE_P(Daemons, StateRefusalsOf, ::testing::Values(1, 2));

TEST_P(StateRefusalsOf, NothingIsHalfLoaded) {
  Training training{.steps = Range(0, 4)};
  training.model = Model(31);
  const Trained other_layout = Train(training);
  training.model = Model();
  training.hook = "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=3";
  const Trained other_rank = Train(training);
  training.hook = kPowerSgd;
  const Trained good = Train(training);
  training.steps = Range(0, 14);
  const Trained undisturbed = Train(training);

  training.daemons = GetParam();
  const auto daemons = Daemons(training);
  Trained disturbed{.results = Results(2), .checkpoint = {.state = "", .dicts = {"", ""}}};
  ExpectAllOk(RunRanks(Options(daemons, training), [&](Client& client, int rank) -> absl::Status {
    for (int step : training.steps) {
      if (step % 5 == 2) {
        if (absl::Status status = client.Barrier(); !status.ok()) return status;
        if (rank == step % 2) {
          TryWrongStates(client, good.checkpoint, other_layout.checkpoint, other_rank.checkpoint);
        }
        if (absl::Status status = client.Barrier(); !status.ok()) return status;
      }
      absl::Status status = Step(client, rank, step, training, disturbed.results);
      if (!status.ok()) return status;
    }
    return Save(client, rank, disturbed.checkpoint);
  }));
  ExpectSameResults(undisturbed.results, disturbed.results, 0);
  ExpectSameCheckpoint(undisturbed.checkpoint, disturbed.checkpoint);
}

TEST(StateRefusals, AStepThatIsOpen) {
  const Training training{.steps = Range(0, 5)};
  const Trained undisturbed = Train(training);
  TestDaemon daemon({.chunk_bytes = 1024});
  const auto admin = Admin(daemon);
  std::atomic<bool> tried = false;
  Results results(2);
  ExpectAllOk(RunRanks(Options(daemon, training), [&](Client& client, int rank) -> absl::Status {
    for (int step : training.steps) {
      const auto before = GetStatus(*admin).contribution_bytes_total();
      if (absl::Status status = client.Barrier(); !status.ok()) return status;
      Buckets buckets(training.model);
      buckets.Fill(rank, step);
      constexpr auto kOpen = absl::StatusCode::kFailedPrecondition;
      if (step == 3 && rank == 1) {
        // The other member has begun the step, this one has not.
        EXPECT_TRUE(
            Eventually([&] { return GetStatus(*admin).contribution_bytes_total() > before; }));
        ExpectRefused(client.ImportState(undisturbed.checkpoint.state), kOpen, "middle of step 3",
                      "import");
        // For this member it has not: it may save where it stands.
        const auto state = client.ExportState();
        if (!state.ok()) return state.status();
        const auto read = ReadSafetensors(*state);
        EXPECT_TRUE(read.ok() && read->metadata.at("iteration") == "3") << read.status();
        tried = true;
      }
      const Completion first = client.AllReduce(buckets.bucket(0));
      if (step == 3 && rank == 0) {
        const std::string& state = undisturbed.checkpoint.state;
        const std::string& dict = undisturbed.checkpoint.dicts[0];
        ExpectRefused(client.ImportState(state), kOpen, "middle of step 3", "import");
        ExpectRefused(client.ExportState().status(), kOpen, "middle of step 3", "export");
        ExpectRefused(client.LoadStateDict(dict), kOpen, "middle of step 3", "load");
        ExpectRefused(client.StateDict().status(), kOpen, "middle of step 3", "dict");
        ExpectRefused(client.SetLossScale(2), kOpen, "middle of step 3", "scale");
        EXPECT_TRUE(Eventually([&] { return tried.load(); }));
      }
      const Completion second = client.AllReduce(buckets.bucket(1));
      for (const Completion& completion : {first, second}) {
        if (absl::Status status = completion.Wait(); !status.ok()) return status;
      }
      // All parameters are reduced, but nobody has ended the step.
      ExpectRefused(client.StateDict().status(), kOpen, "EndStep", "before EndStep");
      if (const auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
      results[static_cast<std::size_t>(rank)].push_back(buckets.values());
    }
    return absl::OkStatus();
  }));
  ExpectSameResults(undisturbed.results, results, 0);
}

TEST(StateRefusals, SessionsWithoutStateAndNoSession) {
  TestDaemon daemon;
  const auto admin = Admin(daemon);
  EXPECT_EQ(wire::FetchState(*admin, "nobody", "", absl::Seconds(10)).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(
      wire::ReplaceState(*admin, "nobody", std::string(3 << 20, 'x'), 1, "", absl::Seconds(10))
          .status()
          .code(),
      absl::StatusCode::kNotFound);
  ExpectAllOk(RunRanks(Options(daemon, {.hook = "fp16"}), [](Client& client, int) -> absl::Status {
    ExpectRefused(client.ExportState().status(), absl::StatusCode::kFailedPrecondition,
                  "keeps no state", "export");
    const auto dict = client.StateDict();
    if (!dict.ok()) return dict.status();
    return client.LoadStateDict(*dict);
  }));
}

TEST(StateRefusals, TheSdkThreadDoesNotWaitForItself) {
  TestDaemon daemon;
  std::atomic<bool> registered = false;  // rank 0's callback, so that it runs on the SDK's thread
  ExpectAllOk(RunRanks(Options(daemon, {}), [&](Client& client, int rank) -> absl::Status {
    Buckets buckets(Model());
    buckets.Fill(rank, 0);
    if (rank == 1) {
      EXPECT_TRUE(Eventually([&] { return registered.load(); }));
      return Reduce(client, buckets).status();
    }
    Completion first = client.AllReduce(buckets.bucket(0));
    std::atomic<bool> called = false;
    first.OnDone([&](const absl::Status&) {
      for (const absl::Status& status :
           {client.ExportState().status(), client.ImportState(""), client.StateDict().status(),
            client.LoadStateDict(""), client.SetLossScale(2)}) {
        EXPECT_THAT(Message(status), AllOf(HasSubstr("callback"), HasSubstr("itself")));
      }
      called = true;
    });
    registered = true;
    const Completion second = client.AllReduce(buckets.bucket(1));
    if (absl::Status status = second.Wait(); !status.ok()) return status;
    EXPECT_TRUE(Eventually([&] { return called.load(); }));
    return client.EndStep().status();
  }));
}

TEST(StateTool, ExportsAndImportsAFile) {
  TestDaemon daemon({.chunk_bytes = 1024});
  const auto ctl = [&](const std::string& action, const std::string& file) {
    const std::string log = daemon.Path("log");
    const auto tool = Process::Start(
        {GRADWIRE_CTL, "--address", daemon.address(), "session", action, "state", file}, log);
    EXPECT_TRUE(tool.ok()) << tool.status();
    EXPECT_EQ((*tool)->Wait(absl::Seconds(30)), 0) << (*tool)->Log();
    return (*tool)->Log();
  };
  const Training training{.steps = Range(0, 6)};
  const Trained undisturbed = Train(training);
  Results results(2);
  ExpectAllOk(RunRanks(Options(daemon, training), [&](Client& client, int rank) -> absl::Status {
    for (int step : training.steps) {
      if (step == 4) {
        if (absl::Status status = client.Barrier(); !status.ok()) return status;
        if (rank == 0) {
          const std::string file = daemon.Path("state.safetensors");
          EXPECT_THAT(ctl("export", file), HasSubstr("state of session state, "));
          EXPECT_THAT(ctl("import", file), HasSubstr("its iteration is 4"));
        }
        if (absl::Status status = client.Barrier(); !status.ok()) return status;
      }
      absl::Status status = Step(client, rank, step, training, results);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }));
  ExpectSameResults(undisturbed.results, results, 0);
}

TEST(StateReport, SaysWhatIsCompressedAndWhatItCost) {
  TestDaemon daemon;
  const auto admin = Admin(daemon);
  const Training training{.steps = Range(0, 4)};
  Results results(2);
  ExpectAllOk(RunRanks(Options(daemon, training), [&](Client& client, int rank) -> absl::Status {
    for (int step : training.steps) {
      absl::Status status = Step(client, rank, step, training, results);
      if (!status.ok()) return status;
    }
    EXPECT_GT(client.metrics().compress_seconds, 0);
    EXPECT_GT(client.metrics().decompress_seconds, 0);
    return client.Barrier();
  }));
  // Read while the session is known: its members have just left it.
  const v1::SessionStatus status = GetStatus(*admin);
  EXPECT_EQ(status.iteration(), 4);
  grpc::ClientContext context;
  v1::ListSessionsResponse list;
  EXPECT_TRUE(admin->ListSessions(&context, {}, &list).ok());
  for (const v1::SessionStatus& one : list.sessions()) EXPECT_EQ(one.compression_size(), 0);
}

TEST(LossScale, ResidualsFollowThePowerOfTwo) {
  const Training plain{.steps = Range(0, 12)};
  const Trained whole = Train(plain);
  TestDaemon daemon({.chunk_bytes = 1024});
  const auto admin = Admin(daemon);
  Results results(2);
  ExpectAllOk(RunRanks(Options(daemon, plain), [&](Client& client, int rank) -> absl::Status {
    float scale = 1;
    for (int step : plain.steps) {
      if (step % 3 == 1) {
        scale = step == 10 ? 0.25F : scale * 8;
        if (absl::Status status = client.SetLossScale(scale); !status.ok()) return status;
      }
      Buckets buckets(plain.model);
      buckets.Fill(rank, step, scale);
      if (const auto verdict = Reduce(client, buckets); !verdict.ok()) return verdict.status();
      std::vector<float> values = buckets.values();
      for (float& value : values) value /= scale;
      results[static_cast<std::size_t>(rank)].push_back(std::move(values));
      if (step != 5) continue;
      const v1::SessionStatus status = GetStatus(*admin);
      EXPECT_EQ(status.compression_size(), 3);
      for (const v1::ParameterStatus& line : status.compression()) {
        EXPECT_EQ(line.rank(), line.name() == "bias" ? 0 : 2) << line.name();
      }
    }
    return client.Barrier();
  }));
  ExpectSameResults(whole.results, results, 0);
}

}  // namespace
}  // namespace gradwire::testing

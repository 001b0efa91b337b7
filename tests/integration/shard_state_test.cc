// The state of a session over several daemons: it is that of one daemon, and fits any number.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <memory>
#include <string>
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

constexpr int kHalf = 7;
constexpr int kSteps = 14;

struct Move {
  std::size_t from = 1;
  std::size_t to = 1;
};
constexpr Move kMoves[] = {{1, 2}, {2, 1}, {2, 4}, {4, 2}};

struct Case {
  std::string name;
  std::string hook;
  DrawBuckets draw_plan{};
};

std::vector<Case> Cases() {
  return {{"plain", kPowerSgd},
          {"wrapped_fp16", kPowerSgd + ",comm_wrapper=fp16"},
          {"wrapped_bf16", kPowerSgd + ",comm_wrapper=bf16"},
          {"local", kPowerSgd + ",error_feedback=local"},
          {"cold", kPowerSgd + ",warm_start=false"},
          {"one_round", kPowerSgd + ",rounds=1"},
          {"draw_plan", kPowerSgd, {{2}, {1, 0}}},
          {"before_compression", "power_sgd,start_powerSGD_iter=10,matrix_approximation_rank=2"}};
}

std::unique_ptr<v1::AdminService::Stub> Admin(const TestDaemon& daemon) {
  return v1::AdminService::NewStub(
      grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials()));
}

class ShardState : public ::testing::TestWithParam<Case> {};

// Compared with one daemon and no interruption, in the gradients and in what is saved at the end.
TEST_P(ShardState, ATrainingGoesOnWithAnotherNumberOfDaemons) {
  Training training{.hook = GetParam().hook, .draw_plan = GetParam().draw_plan};
  training.steps = Range(0, kSteps);
  const Trained whole = Train(training);
  if (HasFailure()) return;
  for (const Move& move : kMoves) {
    SCOPED_TRACE(absl::StrCat("from ", move.from, " to ", move.to));
    training.from = nullptr;
    training.daemons = move.from;
    training.steps = Range(0, kHalf);
    const Trained first = Train(training);
    training.from = &first.checkpoint;
    training.daemons = move.to;
    training.steps = Range(kHalf, kSteps);
    const Trained second = Train(training);
    if (HasFailure()) return;
    ExpectSameResults(whole.results, second.results, kHalf);
    if (GetParam().name != "before_compression") {
      ExpectSameCheckpoint(whole.checkpoint, second.checkpoint);
    }
  }
}

// The very files, but for the step, which counts from the session's begin.
TEST(ShardStateFiles, AreThoseOfOneDaemon) {
  Training training{.steps = Range(0, 3)};
  const Trained one = Train(training);
  training.daemons = 3;
  const Trained three = Train(training);
  EXPECT_EQ(one.checkpoint.state, three.checkpoint.state);
  EXPECT_EQ(one.checkpoint.dicts, three.checkpoint.dicts);
}

TEST(ShardStateFiles, ASkippedStepLeavesNoTrace) {
  Training training{.steps = Range(0, 6), .poisoned = 3, .daemons = 2};
  Trained skipping = Train(training);
  for (auto& results : skipping.results) results.erase(results.begin() + 3);
  std::erase(training.steps, 3);
  training.daemons = 1;
  const Trained without = Train(training);
  ExpectSameResults(without.results, skipping.results, 0);
  ExpectSameCheckpoint(without.checkpoint, skipping.checkpoint);
}

// Their state is empty, but they take part in the same checkpoints.
class StatelessShards : public ::testing::TestWithParam<const char*> {};

TEST_P(StatelessShards, SayThatThereIsNoState) {
  Training training{.hook = GetParam(), .daemons = 2};
  const auto save = [&](std::size_t daemons) {
    training.daemons = daemons;
    const auto running = Daemons(training);
    Results results(2);
    std::vector<std::string> dicts(2);
    ExpectAllOk(RunRanks(Options(running, training), [&](Client& client, int rank) -> absl::Status {
      const auto place = static_cast<std::size_t>(rank);
      if (absl::Status status = Step(client, rank, 0, training, results); !status.ok()) {
        return status;
      }
      EXPECT_THAT(std::string(client.ExportState().status().message()),
                  AllOf(HasSubstr("keeps no state"), HasSubstr("[GW501]")));
      EXPECT_THAT(std::string(client.ImportState("").message()), HasSubstr("keeps no state"));
      auto dict = client.StateDict();
      if (!dict.ok()) return dict.status();
      if (absl::Status loaded = client.LoadStateDict(*dict); !loaded.ok()) return loaded;
      dicts[place] = *dict;
      if (absl::Status status = Step(client, rank, 1, training, results); !status.ok()) {
        return status;
      }
      return client.Leave();
    }));
    return std::pair(results, dicts);
  };
  EXPECT_EQ(save(1), save(2));
}

INSTANTIATE_TEST_SUITE_P(Hooks, StatelessShards,
                         ::testing::Values("no", "fp16", "no,comm_wrapper=fp16"));

// What one daemon exports is not taken for the whole.
TEST(ShardStateParts, AreMarkedAndRefused) {
  Training training{.steps = Range(0, 2), .daemons = 2};
  const auto daemons = Daemons(training);
  Results results(2);
  ExpectAllOk(RunRanks(Options(daemons, training), [&](Client& client, int rank) -> absl::Status {
    if (absl::Status status = Step(client, rank, 0, training, results); !status.ok()) return status;
    if (absl::Status status = client.Barrier(); !status.ok()) return status;
    if (rank == 1) return client.Barrier();
    const auto admin = Admin(*daemons[1]);
    const auto file = wire::FetchState(*admin, "state", "", absl::Seconds(10));
    if (!file.ok()) return file.status();
    const auto part = ReadSafetensors(*file);
    if (!part.ok()) return part.status();
    EXPECT_EQ(part->metadata.at("shard"), "1 of 2");
    // Of the two compressed parameters, each shard has one.
    EXPECT_EQ(part->tensors.size(), 1U);
    const absl::Status refused = client.ImportState(*file);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("is the part of shard 1 of 2"), HasSubstr("[GW503]")));
    return client.Barrier();
  }));
}

// The second daemon has two imports under way and takes no third: the first one has the new state
// by then.
TEST(ShardStateParts, AnImportThatReachesSomeDaemonsEndsTheSession) {
  Training training{.steps = Range(0, 2), .daemons = 2};
  const Trained saved = Train(training);
  const auto daemons = Daemons(training);
  const auto told = RunRanks(Options(daemons, training), [&](Client& client, int rank) {
    if (rank == 1) return client.Barrier();
    const auto admin = Admin(*daemons[1]);
    // Of three, one is refused: the other two are under way.
    grpc::ClientContext contexts[3];
    v1::ImportStateResponse responses[3];
    v1::ImportStateRequest request;
    std::vector<std::unique_ptr<grpc::ClientWriter<v1::ImportStateRequest>>> writers;
    for (int i = 0; i < 3; ++i) {
      writers.push_back(admin->ImportState(&contexts[i], &responses[i]));
      request.set_session("state");
      writers.back()->Write(request);
    }
    request.clear_session();
    EXPECT_TRUE(Eventually([&] {
      return std::any_of(writers.begin(), writers.end(),
                         [&](const auto& writer) { return !writer->Write(request); });
    }));
    const absl::Status half = client.ImportState(saved.checkpoint.state);
    EXPECT_THAT(std::string(half.message()),
                AllOf(HasSubstr("a new state is on 1 of 2 daemons only"), HasSubstr("shard 1 (")));
    for (grpc::ClientContext& context : contexts) context.TryCancel();
    return client.Barrier();
  });
  EXPECT_EQ(told[0].code(), absl::StatusCode::kResourceExhausted) << told[0];
  for (const absl::Status& status : told) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("a new state is on 1 of 2 daemons only"));
  }
}

INSTANTIATE_TEST_SUITE_P(Hooks, ShardState, ::testing::ValuesIn(Cases()),
                         [](const auto& hook) { return hook.param.name; });

}  // namespace
}  // namespace gradwire::testing

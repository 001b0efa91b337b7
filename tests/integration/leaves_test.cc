// Leaf daemons with a root, all in this process: what their members get, and what goes wrong.
// Members are threads.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "gtest/gtest.h"
#include "tests/integration/leaves_fixture.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::GradientValue;
using ::gradwire::testing::LeafOf;
using ::gradwire::testing::LeavesTest;
using ::gradwire::testing::Model;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::gradwire::testing::Training;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Results = std::vector<std::vector<std::byte>>;  // by step

// What the node of ranks 2 n and 2 n + 1 has, as the leaf rounds it.
void FillWithMean(Gradients& gradients, int node, int step) {
  Gradients first(Model());
  Gradients second(Model());
  first.Fill(2 * node, step);
  second.Fill(2 * node + 1, step);
  auto* out = static_cast<float*>(gradients.Bucket().buffer().data);
  const auto* a = static_cast<const float*>(first.Bucket().buffer().data);
  const auto* b = static_cast<const float*>(second.Bucket().buffer().data);
  for (std::size_t i = 0; i < gradients.Bucket().buffer().numel; ++i) {
    out[i] = static_cast<float>((static_cast<double>(a[i]) + static_cast<double>(b[i])) / 2);
  }
}

constexpr int kSteps = 3;

class LeafHooksTest : public LeavesTest,
                      public ::testing::WithParamInterface<std::tuple<const char*, bool, int>> {};

// Two members that have the nodes' means know of no leaf.
TEST_P(LeafHooksTest, BitsAreThoseOfMembersWithTheNodesMeans) {
  const auto [hook, shared_memory, roots] = GetParam();
  StartLeaves(2, static_cast<std::size_t>(roots));
  ClientOptions plain = Options(2, hook);
  plain.session = "plain";
  plain.address = RootAddress();
  Results expected(kSteps);
  ExpectAllOk(RunRanks(plain, [&](Client& client, int rank) -> absl::Status {
    Training training(client);
    for (int step = 0; step < kSteps; ++step) {
      Gradients gradients(Model());
      FillWithMean(gradients, rank, step);
      if (absl::Status status = training.Step(gradients.bytes()); !status.ok()) return status;
      if (rank == 0) expected[static_cast<std::size_t>(step)] = training.result();
    }
    return client.Leave();
  }));
  ClientOptions options = Options(4, hook);
  options.shared_memory = shared_memory;
  ExpectAllOk(Run(options, [&](Client& client, int rank) -> absl::Status {
    EXPECT_TRUE(client.metrics().leaf);
    EXPECT_EQ(client.metrics().shared_memory, shared_memory);
    Training training(client);
    for (int step = 0; step < kSteps; ++step) {
      if (absl::Status status = training.Step(rank, step); !status.ok()) return status;
      EXPECT_EQ(training.result(), expected[static_cast<std::size_t>(step)])
          << "rank " << rank << " step " << step;
    }
    EXPECT_EQ(client.Report().front().in_place, shared_memory);
    return client.Leave();
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, LeafHooksTest,
    ::testing::Combine(
        ::testing::Values("no", "fp16",
                          "power_sgd,start_powerSGD_iter=1,matrix_approximation_rank=2"),
        ::testing::Bool(), ::testing::Values(1, 2)));

// The trainer at the root counts as one of five.
TEST_F(LeavesTest, AMeanIsThatOfAllRanks) {
  StartLeaves(2);
  ExpectAllOk(Run(Options(5), [](Client& client, int rank) -> absl::Status {
    EXPECT_EQ(client.metrics().leaf, rank < 4);
    Training training(client);
    for (int step = 0; step < kSteps; ++step) {
      if (absl::Status status = training.Step(rank, step); !status.ok()) return status;
      for (const std::size_t i : {std::size_t{0}, std::size_t{1000}, std::size_t{30'000}}) {
        double mean = 0;
        for (int r = 0; r < 5; ++r) mean += static_cast<float>(GradientValue(r, step, i)) / 5.0;
        EXPECT_NEAR(training.result(i), mean, 3e-7) << "element " << i << " of rank " << rank;
      }
    }
    return client.Leave();
  }));
}

TEST_F(LeavesTest, AStepThatOneSkipsIsSkippedByAll) {
  StartLeaves(2);
  ExpectAllOk(Run(Options(5, "fp16"), [](Client& client, int rank) -> absl::Status {
    Training training(client);
    for (int step = 0; step < kSteps; ++step) {
      Gradients gradients(Model());
      gradients.Fill(rank, step);
      if (step == 1 && rank == 3) gradients.Poison(1234);
      const Verdict expected = step == 1 ? Verdict::kSkip : Verdict::kApply;
      if (absl::Status status = training.Step(gradients.bytes(), expected); !status.ok()) {
        return status;
      }
    }
    EXPECT_EQ(client.metrics().steps_skipped, 1);
    return client.Leave();
  }));
}

TEST_F(LeavesTest, NoopLeavesGradientsAsTheyAre) {
  StartLeaves(1);
  ExpectAllOk(Run(Options(3, "noop"), [](Client& client, int rank) -> absl::Status {
    Training training(client);
    for (int step = 0; step < kSteps; ++step) {
      if (absl::Status status = training.Step(rank, step); !status.ok()) return status;
      EXPECT_EQ(training.result(17), static_cast<float>(GradientValue(rank, step, 17)));
    }
    return client.Leave();
  }));
}

TEST_F(LeavesTest, ABarrierWaitsForTheMembersOfAllNodes) {
  StartLeaves(2);
  std::atomic<int> here = 0;
  ExpectAllOk(Run(Options(5), [&](Client& client, int) -> absl::Status {
    for (int round = 1; round <= 3; ++round) {
      ++here;
      if (absl::Status status = client.Barrier(); !status.ok()) return status;
      EXPECT_GE(here, 5 * round);
    }
    return client.Leave();
  }));
}

// ---- Failures

TEST_F(LeavesTest, ALostMemberIsBlamedOnAllNodes) {
  StartLeaves(2);
  const std::vector<absl::Status> statuses =
      Run(Options(5), [](Client& client, int rank) -> absl::Status {
        Training training(client);
        if (absl::Status status = training.Step(rank, 0); !status.ok()) return status;
        if (rank == 2) {  // its destructor ends the session in the middle of a step
          Gradients gradients(Model());
          auto bucket = GradBucket::Make(
              0, {.data = gradients.Bucket().buffer().data, .numel = 2400}, {Model()[0]});
          client.AllReduce(*bucket);
          return absl::OkStatus();
        }
        return training.Step(rank, 1);
      });
  for (const int rank : {0, 1, 3, 4}) {
    EXPECT_THAT(statuses[static_cast<std::size_t>(rank)].message(), HasSubstr("rank 2"))
        << "rank " << rank;
  }
}

TEST_F(LeavesTest, ALostLeafIsBlamedWithItsRanks) {
  StartLeaves(2);
  std::atomic<int> begun = 0;
  const std::vector<absl::Status> statuses =
      Run(Options(5), [&](Client& client, int rank) -> absl::Status {
        Training training(client);
        if (absl::Status status = training.Step(rank, 0); !status.ok()) return status;
        ++begun;
        if (rank == 4) {
          EXPECT_TRUE(testing::Eventually([&] { return begun == 5; }));
          leaves_[1]->server().Shutdown(absl::ZeroDuration());
        }
        return training.Step(rank, 1);
      });
  EXPECT_THAT(statuses[0].message(), HasSubstr("with ranks 2 to 3"));
  EXPECT_THAT(statuses[4].message(), HasSubstr("with ranks 2 to 3"));
  for (const int rank : {2, 3}) EXPECT_FALSE(statuses[static_cast<std::size_t>(rank)].ok());
}

TEST_F(LeavesTest, MissingRanksOfAnotherNodeEndTheJoinEverywhere) {
  StartLeaves(2);
  ClientOptions options = Options(4);
  options.join_timeout = absl::Seconds(1);
  const std::vector<absl::Status> statuses = RunRanks(
      options, [](Client&, int) { return absl::OkStatus(); },
      [this](ClientOptions& own, int rank) {
        Place(own, rank);
        if (rank == 3) own.address = "unix:/nowhere/gradwire.sock";
        if (rank == 3) own.connect_timeout = absl::Milliseconds(10);
      });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(statuses[static_cast<std::size_t>(rank)].message(),
                AllOf(HasSubstr("ranks 2, 3 of 4"), HasSubstr("[GW205]")));
  }
}

TEST_F(LeavesTest, AMemberMustSayWhichRanksAreOnItsNode) {
  StartLeaves(1);
  ClientOptions options = Options(2);
  const auto join = [&](const std::function<void(ClientOptions&)>& change) {
    ClientOptions own = options;
    own.rank = 0;
    Place(own, 0);
    change(own);
    return std::string(Client::Join(own).status().message());
  };
  EXPECT_THAT(join([](ClientOptions& own) {
                own.local_rank = -1;
                own.local_world_size = 0;
              }),
              AllOf(HasSubstr("node: not given"), HasSubstr("[GW216]")));
  EXPECT_THAT(join([](ClientOptions& own) { own.hook.comm_hook = "mine"; }), HasSubstr("mine"));
}

// The root's session has the hook of whoever came first.
TEST_F(LeavesTest, ALeafWithAnotherHookIsRefused) {
  StartLeaves(2);
  ClientOptions options = Options(4);
  options.join_timeout = absl::Seconds(3);
  const std::vector<absl::Status> statuses = RunRanks(
      options, [](Client&, int) { return absl::OkStatus(); },
      [this](ClientOptions& own, int rank) {
        Place(own, rank);
        if (rank >= 2) own.hook.comm_hook = "fp16";
      });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), AllOf(HasSubstr("comm_hook"), HasSubstr("fp16")));
  }
}

TEST_F(LeavesTest, TheStatusSaysWhoIsBehindALeaf) {
  StartLeaves(1);
  const auto status_of = [](const TestDaemon& daemon) {
    grpc::ClientContext context;
    v1::GetSessionRequest request;
    request.set_session("leaves");
    v1::GetSessionResponse response;
    const auto admin = v1::AdminService::NewStub(
        grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials()));
    const grpc::Status got = admin->GetSession(&context, request, &response);
    EXPECT_TRUE(got.ok()) << got.error_message();
    return response.session();
  };
  ExpectAllOk(Run(Options(3, "fp16"), [&](Client& client, int rank) -> absl::Status {
    Training training(client);
    if (absl::Status status = training.Step(rank, 0); !status.ok()) return status;
    if (rank == 2) {
      const v1::SessionStatus root = status_of(*roots_[0]);
      EXPECT_FALSE(root.has_leaf());
      EXPECT_EQ(root.members(0).state(), "connected");
      EXPECT_NE(root.members(0).leaf(), "");
      EXPECT_EQ(root.members(0).ranks(), 2);
      EXPECT_EQ(root.members(1).state(), "elsewhere");
      EXPECT_EQ(root.members(2).leaf(), "");
      const v1::SessionStatus leaf = status_of(*leaves_[0]);
      EXPECT_EQ(leaf.leaf().members(), 2);
      EXPECT_EQ(leaf.members(1).transport(), "shared memory");
      EXPECT_EQ(leaf.members(2).state(), "elsewhere");
      EXPECT_EQ(leaf.hook().comm_hook(), "fp16");
    }
    if (absl::Status status = client.Barrier(); !status.ok()) return status;
    return client.Leave();
  }));
}

// Its own upstream, or one more level.
TEST_F(LeavesTest, ALeafTakesNoLeaves) {
  StartLeaves(1);
  const TestDaemon second(LeafOf(leaves_[0]->address()));
  ClientOptions options = Options(2);
  options.rank = 0;
  options.local_rank = 0;
  options.local_world_size = 1;
  options.address = second.address();
  EXPECT_THAT(Client::Join(options).status().message(),
              AllOf(HasSubstr("upstream unix:"), HasSubstr("this daemon is a leaf itself"),
                    HasSubstr("[GW216]")));
}

TEST_F(LeavesTest, WhatTheNodeHasTogetherIsRefused) {
  StartLeaves(1);
  ExpectAllOk(Run(
      Options(2, "power_sgd,start_powerSGD_iter=1"), [](Client& client, int rank) -> absl::Status {
        Training training(client);
        if (absl::Status status = training.Step(rank, 0); !status.ok()) return status;
        for (const absl::Status& refused :
             {client.StateDict().status(), client.LoadStateDict(""), client.ExportState().status(),
              client.ImportState(""), client.SetLossScale(2)}) {
          EXPECT_THAT(refused.message(), AllOf(HasSubstr("is a leaf"), HasSubstr("[GW216]")));
        }
        return client.Leave();
      }));
}

}  // namespace
}  // namespace gradwire

// A session over several daemons: who carries what, and what goes wrong. Members are threads.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/raw_member.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectedReduction;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<ParameterSpec> kModel = {MakeParameter("w", 300'000), MakeParameter("b", 7)};

class ShardsTest : public ::testing::Test {
 protected:
  explicit ShardsTest(std::size_t daemons = 3) {
    for (std::size_t i = 0; i < daemons; ++i) daemons_.push_back(std::make_unique<TestDaemon>());
  }

  std::string Addresses() const {
    return absl::StrJoin(daemons_, ",", [](std::string* out, const auto& daemon) {
      absl::StrAppend(out, daemon->address());
    });
  }
  ClientOptions Options(int world_size, const std::string& hook = "no") const {
    return {.address = Addresses(),
            .session = "shards",
            .world_size = world_size,
            .parameters = kModel,
            .hook = *HookSpec::Parse(hook),
            .shared_memory = false,
            .step_timeout = absl::Seconds(20)};
  }
  std::unique_ptr<v1::AdminService::Stub> Admin(std::size_t daemon) const {
    return v1::AdminService::NewStub(
        grpc::CreateChannel(daemons_[daemon]->address(), grpc::InsecureChannelCredentials()));
  }
  v1::SessionStatus StatusOf(std::size_t daemon) const {
    grpc::ClientContext context;
    v1::GetSessionRequest request;
    request.set_session("shards");
    v1::GetSessionResponse response;
    const grpc::Status got = Admin(daemon)->GetSession(&context, request, &response);
    EXPECT_TRUE(got.ok()) << got.error_message();
    return response.session();
  }

  std::vector<std::unique_ptr<TestDaemon>> daemons_;
};

// Daemons of one session are on several hosts, whatever the test's are.
TEST_F(ShardsTest, ChunksAreThoseOfANetwork) {
  using ::gradwire::testing::RawMember;
  v1::JoinRequest request = RawMember::MakeJoin(Options(2));
  RawMember member(daemons_[0]->address());
  const auto alone = member.Join(request);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->chunk_bytes(), server::ServerOptions().chunk_bytes);
  EXPECT_EQ(alone->window_chunks(), server::ServerOptions().window_chunks);

  request.set_session("several");
  for (const auto& daemon : daemons_) request.mutable_shard()->add_addresses(daemon->address());
  const auto joined = member.Join(request);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->chunk_bytes(), server::ServerOptions().network_chunk_bytes);
  EXPECT_EQ(joined->window_chunks(), server::ServerOptions().network_window_chunks);
}

// One step over all parameters in one bucket.
absl::Status Reduce(Client& client, Gradients& gradients) {
  GradBucket bucket = gradients.Bucket();
  return client.AllReduce(bucket).Wait();
}

TEST_F(ShardsTest, EachDaemonReducesItsPartAndTheResultIsTheSame) {
  static constexpr int kSteps = 3;
  testing::ExpectAllOk(RunRanks(Options(2), [](Client& client, int rank) -> absl::Status {
    for (int step = 0; step < kSteps; ++step) {
      Gradients gradients(kModel);
      gradients.Fill(rank, step);
      if (absl::Status status = Reduce(client, gradients); !status.ok()) return status;
      const absl::StatusOr<Verdict> verdict = client.EndStep();
      if (!verdict.ok()) return verdict.status();
      EXPECT_EQ(*verdict, Verdict::kApply);
      EXPECT_EQ(gradients.bytes(), *ExpectedReduction(HookSpec(), kModel, 2, step));
    }
    EXPECT_EQ(client.metrics().steps_applied, kSteps);
    EXPECT_EQ(client.metrics().bytes_sent, kSteps * 300'007 * sizeof(float));
    return client.Leave();
  }));
  // The daemons' own figures: a third each, but for the grain.
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < daemons_.size(); ++i) {
    const auto bytes = static_cast<std::int64_t>(StatusOf(i).contribution_bytes_total());
    sum += bytes;
    EXPECT_NEAR(static_cast<double>(bytes), 2 * kSteps * 100'000 * sizeof(float),
                2 * kSteps * 2048 * sizeof(float));
  }
  EXPECT_EQ(sum, std::int64_t{2} * kSteps * 300'007 * static_cast<std::int64_t>(sizeof(float)));
}

TEST_F(ShardsTest, WhatIsNotFiniteOnOneDaemonSkipsTheStepOnAll) {
  testing::ExpectAllOk(RunRanks(Options(2, "fp16"), [](Client& client, int rank) -> absl::Status {
    for (int step = 0; step < 2; ++step) {
      Gradients gradients(kModel);
      gradients.Fill(rank, step);
      // In the middle: the second daemon's.
      if (step == 0 && rank == 1) gradients.Poison(150'000);
      if (absl::Status status = Reduce(client, gradients); !status.ok()) return status;
      const absl::StatusOr<Verdict> verdict = client.EndStep();
      if (!verdict.ok()) return verdict.status();
      EXPECT_EQ(*verdict, step == 0 ? Verdict::kSkip : Verdict::kApply);
    }
    return client.Leave();
  }));
  for (std::size_t i = 0; i < daemons_.size(); ++i) {
    EXPECT_EQ(StatusOf(i).steps_skipped_total(), 1U) << "daemon " << i;
    EXPECT_EQ(StatusOf(i).steps_applied_total(), 1U) << "daemon " << i;
  }
}

// A step in which a parameter takes no part is ended by the members.
TEST_F(ShardsTest, MembersEndAStepOnAllDaemons) {
  const std::vector<ParameterSpec> part = {kModel[0]};
  testing::ExpectAllOk(RunRanks(Options(2), [&](Client& client, int rank) -> absl::Status {
    Gradients gradients(part);
    gradients.Fill(rank, 0);
    if (absl::Status status = Reduce(client, gradients); !status.ok()) return status;
    if (auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
    EXPECT_EQ(gradients.bytes(), *ExpectedReduction(HookSpec(), part, 2, 0));
    return client.Leave();
  }));
}

TEST_F(ShardsTest, ADeathIsToldByAllDaemonsWithTheSameWords) {
  const absl::Time began = absl::Now();
  const auto told = RunRanks(Options(3), [](Client& client, int rank) -> absl::Status {
    Gradients gradients(kModel);
    gradients.Fill(rank, 0);
    if (rank == 2) return absl::OkStatus();  // the client's destructor ends its part
    GradBucket bucket = gradients.Bucket();
    Completion reduced = client.AllReduce(bucket);
    return reduced.Wait();
  });
  EXPECT_LT(absl::Now() - began, absl::Seconds(15));
  EXPECT_TRUE(told[2].ok()) << told[2];
  EXPECT_FALSE(told[0].ok());
  EXPECT_EQ(told[0], told[1]);
  EXPECT_THAT(std::string(told[0].message()), HasSubstr("rank 2"));
}

TEST_F(ShardsTest, AnEvictionOnOneDaemonEndsTheSessionOnAll) {
  const auto told = RunRanks(Options(2), [this](Client& client, int rank) -> absl::Status {
    Gradients gradients(kModel);
    gradients.Fill(rank, 0);
    if (absl::Status status = Reduce(client, gradients); !status.ok()) return status;
    if (auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
    if (absl::Status status = client.Barrier(); !status.ok()) return status;
    if (rank == 0) {
      grpc::ClientContext context;
      v1::EvictSessionRequest request;
      request.set_session("shards");
      request.set_reason("the queue is needed");
      v1::EvictSessionResponse response;
      EXPECT_TRUE(Admin(1)->EvictSession(&context, request, &response).ok());
    }
    Gradients more(kModel);
    more.Fill(rank, 1);
    return Reduce(client, more);
  });
  EXPECT_EQ(told[0], told[1]);
  EXPECT_THAT(std::string(told[0].message()), HasSubstr("the queue is needed"));
}

TEST_F(ShardsTest, ListsThatDifferAreRefusedWithTheDifference) {
  ClientOptions options = Options(2);
  options.join_timeout = absl::Seconds(10);
  const auto told = [&] {
    std::vector<absl::Status> statuses(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        ClientOptions own = options;
        own.rank = rank;
        if (rank == 1) {
          // The same daemons in another order: the first one is asked to be shard 0 by both.
          own.address = absl::StrCat(daemons_[0]->address(), ",", daemons_[2]->address(), ",",
                                     daemons_[1]->address());
        }
        statuses[static_cast<std::size_t>(rank)] = Client::Join(own).status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }();
  EXPECT_THAT(absl::StrCat(told[0].message(), told[1].message()),
              AllOf(HasSubstr("shards[1]"), HasSubstr("[GW215]")));
}

TEST_F(ShardsTest, OneDaemonUnderTwoNamesIsRefused) {
  ClientOptions options = Options(1);
  const std::string socket = daemons_[0]->socket();
  options.address = absl::StrCat("unix:", socket, ",unix://", socket);
  EXPECT_THAT(
      std::string(Client::Join(options).status().message()),
      AllOf(HasSubstr("shards[1] is this daemon, which is shards[0] too"), HasSubstr("[GW215]")));
}

TEST_F(ShardsTest, HooksThatNeedWholeBucketsAreRefused) {
  EXPECT_THAT(std::string(Client::Join(Options(1, "batched_power_sgd")).status().message()),
              AllOf(HasSubstr("whole buckets"), HasSubstr("[GW215]")));
}

TEST_F(ShardsTest, ADaemonThatIsDownIsNamed) {
  ClientOptions options = Options(1);
  options.address = absl::StrCat(daemons_[0]->address(), ",unix:", daemons_[0]->Path("none"));
  options.connect_timeout = absl::Seconds(1);
  options.on_wait = [](const std::string&) {};
  EXPECT_THAT(std::string(Client::Join(options).status().message()),
              AllOf(HasSubstr("shard 1 ("), HasSubstr("none")));
  // Nor does it keep the place at the first one.
  EXPECT_TRUE(testing::Eventually([&] {
    options.address = daemons_[0]->address();
    return Client::Join(options).ok();
  }));
}

}  // namespace
}  // namespace gradwire

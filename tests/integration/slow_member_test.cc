// The daemon names the member that keeps the others waiting, and says why.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/client.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::testing::HasSubstr;
using testing::TestDaemon;

v1::SessionStatus StatusOf(const TestDaemon& daemon) {
  const auto stub = v1::AdminService::NewStub(
      grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::GetSessionRequest request;
  request.set_session("s");
  v1::GetSessionResponse response;
  EXPECT_TRUE(stub->GetSession(&context, request, &response).ok());
  return response.session();
}

// Two buckets a step, one after the other as in a backward pass. `late` computes for 200 ms more.
// `at_end` is called before the member leaves: the daemon soon forgets the steps of a session that
// all have left.
absl::Status Train(const TestDaemon& daemon, int rank, int world_size, int late,
                   const std::function<void()>& at_end) {
  ClientOptions options{
      .address = daemon.address(),
      .session = "s",
      .rank = rank,
      .world_size = world_size,
      .parameters = {testing::MakeParameter("a", 1000), testing::MakeParameter("b", 200'000)}};
  auto client = Client::Join(options);
  if (!client.ok()) return client.status();
  std::vector<testing::Gradients> buckets;
  for (const ParameterSpec& parameter : options.parameters) {
    buckets.emplace_back(std::vector<ParameterSpec>{parameter});
  }
  for (std::int64_t step = 0; step < 3; ++step) {
    if (rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::vector<Completion> pending;
    std::vector<GradBucket> views;
    for (testing::Gradients& bucket : buckets) {
      bucket.Fill(rank, step);
      views.push_back(bucket.Bucket());
      pending.push_back((*client)->AllReduce(views.back()));
    }
    for (Completion& reduced : pending) {
      if (absl::Status status = reduced.Wait(); !status.ok()) return status;
    }
    if (auto verdict = (*client)->EndStep(); !verdict.ok()) return verdict.status();
  }
  absl::Status met = (*client)->Barrier();
  at_end();
  return met;
}

TEST(SlowMemberTest, IsNamedWithinThreeSteps) {
  const TestDaemon daemon;
  std::vector<std::thread> members;
  std::vector<absl::Status> ends(4);
  v1::SessionStatus status;
  for (int rank = 0; rank < 4; ++rank) {
    members.emplace_back([&, rank] {
      ends[static_cast<std::size_t>(rank)] = Train(daemon, rank, 4, 2, [&] {
        if (rank == 0) status = StatusOf(daemon);
      });
    });
  }
  for (std::thread& member : members) member.join();
  for (const absl::Status& end : ends) EXPECT_TRUE(end.ok()) << end;

  EXPECT_THAT(status.slow(), HasSubstr("rank 2 caused"));
  EXPECT_THAT(status.slow(), HasSubstr("announces its buckets late"));
  ASSERT_EQ(status.recent_steps_size(), 3);
  for (const v1::StepStatus& step : status.recent_steps()) {
    EXPECT_GE(step.members(2).compute_wait().nanos(), 190'000'000) << step.ShortDebugString();
    EXPECT_GE(step.straggler_gap().seconds() * 1000 + step.straggler_gap().nanos() / 1'000'000,
              190);
  }
  // Each waiting member's own step takes as long as the others'.
  EXPECT_LT(status.members(0).compute_wait_total().seconds(), 1);
}

}  // namespace
}  // namespace gradwire

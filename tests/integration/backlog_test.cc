// What waits for a slow or resuming member: more than its stream's queue may hold of its own.
#include <grpcpp/create_channel.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "gtest/gtest.h"
#include "tests/testing/fault_relay.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::ExpectedReduction;
using ::gradwire::testing::FaultRelay;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;

constexpr std::size_t kElements = 1'500'000;  // 6 MB
constexpr char kSession[] = "backlog";

// A stream's queue may hold 1.2 MB of its own.
server::ServerOptions SmallWindow() {
  return {.chunk_bytes = 16 << 10,
          .window_chunks = 2,
          .open_buckets = 2,
          .resume_grace = absl::Seconds(10)};
}

std::uint64_t ContributedBytes(const TestDaemon& daemon) {
  const auto admin = v1::AdminService::NewStub(
      grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::GetSessionRequest request;
  request.set_session(kSession);
  v1::GetSessionResponse response;
  const grpc::Status status = admin->GetSession(&context, request, &response);
  return status.ok() ? response.session().contribution_bytes_total() : 0;
}

// A member's only parameter, in memory that the daemon maps.
class SharedGradients {
 public:
  SharedGradients(Client& client, const ParameterSpec& parameter)
      : gradients_({parameter}), memory_(client.AllocateGradients(gradients_.bytes().size())) {}

  absl::StatusOr<GradBucket> Filled(int rank, std::int64_t step) {
    gradients_.Fill(rank, step);
    std::copy(gradients_.bytes().begin(), gradients_.bytes().end(), memory_.get());
    GradBucket bucket = gradients_.Bucket();
    TensorView view = bucket.buffer();
    view.data = memory_.get();
    if (absl::Status set = bucket.set_buffer(view); !set.ok()) return set;
    return bucket;
  }
  bool Equal(const std::vector<std::byte>& want) const {
    return std::equal(want.begin(), want.end(), memory_.get());
  }

 private:
  Gradients gradients_;
  const std::shared_ptr<std::byte> memory_;
};

// The results lie in rank 1's memory, and its first stream breaks before it hears of them. All of
// them go again through the second, as copies.
TEST(Backlog, AResumeAfterResultsInPlaceTakesThemAll) {
  TestDaemon daemon(SmallWindow());
  auto relay = FaultRelay::Start(daemon.Path("relay.sock"), daemon.socket());
  ASSERT_TRUE(relay.ok());
  (*relay)->PassDescriptors(true);
  ClientOptions options{.address = daemon.address(),
                        .session = kSession,
                        .world_size = 2,
                        .parameters = {MakeParameter("w", kElements)},
                        .join_timeout = absl::Seconds(20)};
  std::vector<std::future<absl::Status>> members;
  for (const int rank : {0, 1}) {
    members.push_back(std::async(std::launch::async, [&, rank]() -> absl::Status {
      ClientOptions own = options;
      own.rank = rank;
      if (rank == 1) own.address = (*relay)->address();
      const auto client = Client::Join(own);
      if (!client.ok()) return client.status();
      SharedGradients gradients(**client, options.parameters[0]);
      auto bucket = gradients.Filled(rank, 0);
      if (!bucket.ok()) return bucket.status();
      const std::uint64_t all = kElements * sizeof(float);
      if (rank == 0) {  // when the other's contribution is there, and nothing can reach it
        EXPECT_TRUE(Eventually([&] { return ContributedBytes(daemon) >= all; }));
        (*relay)->Stall(true);
      }
      const Completion done = (*client)->AllReduce(*bucket);
      if (rank == 0) {
        if (absl::Status status = done.Wait(); !status.ok()) return status;
        (*relay)->CutNow();
        (*relay)->Stall(false);
      }
      if (absl::Status status = done.Wait(); !status.ok()) return status;
      const auto want = ExpectedReduction(options.hook, options.parameters, 2, 0, rank);
      if (!want.ok()) return want.status();
      EXPECT_TRUE(gradients.Equal(*want)) << "rank " << rank;
      if (auto verdict = (*client)->EndStep(); !verdict.ok()) return verdict.status();
      EXPECT_GE((*client)->metrics().resumes, rank);
      return (*client)->Leave();
    }));
  }
  std::vector<absl::Status> ended;
  for (auto& member : members) ended.push_back(member.get());
  ExpectAllOk(ended);
}

// Q of one bucket has 4 MB, of which a member gets all before its grant.
TEST(Backlog, ALargeSharedStateReachesEverybody) {
  TestDaemon daemon(SmallWindow());
  ClientOptions options{.address = daemon.address(),
                        .session = kSession,
                        .world_size = 2,
                        .parameters = {{"w", {64, 65'536}, DType::kFloat32}},
                        .hook = *HookSpec::Parse("power_sgd,start_powerSGD_iter=0,"
                                                 "matrix_approximation_rank=16"),
                        .join_timeout = absl::Seconds(20)};
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
    Gradients gradients(options.parameters);
    gradients.Fill(rank, 0);
    GradBucket bucket = gradients.Bucket();
    if (absl::Status done = client.AllReduce(bucket).Wait(); !done.ok()) return done;
    if (auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
    return client.Leave();
  }));
}

}  // namespace
}  // namespace gradwire

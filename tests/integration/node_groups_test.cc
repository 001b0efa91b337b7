// Node groups and a daemon: what travels, and what goes wrong. Members are threads, and groups meet
// in the host's memory.
#include <grpcpp/create_channel.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/runtime/join.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "tests/conformance/grouped_memory.h"
#include "tests/testing/gradients.h"
#include "tests/testing/host_communicator.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::GradientValue;
using ::gradwire::testing::MakeParameter;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<ParameterSpec> kModel = {
    {.name = "w0", .shape = {64, 64}, .dtype = DType::kFloat32},
    {.name = "w1", .shape = {64, 64}, .dtype = DType::kFloat32},
    {.name = "w2", .shape = {64, 64}, .dtype = DType::kFloat32},
    {.name = "w3", .shape = {64, 64}, .dtype = DType::kFloat32}};

// One member's gradients of the whole model.
class Bucket {
 public:
  explicit Bucket(int rank) : values_(4 * 64 * 64) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = static_cast<float>(GradientValue(rank, 0, i));
    }
  }
  GradBucket& operator*() { return bucket_; }

 private:
  std::vector<float> values_;
  GradBucket bucket_ =
      *GradBucket::Make(0, {DType::kFloat32, values_.data(), values_.size()}, kModel);
};

class NodeGroupsTest : public ::testing::Test {
 protected:
  // Runs `work` on each rank, in a thread of its own. Returns by rank what it returned.
  static std::vector<absl::Status> OnEach(std::size_t ranks,
                                          const std::function<absl::Status(int)>& work) {
    std::vector<absl::Status> statuses(ranks);
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] { statuses[r] = work(static_cast<int>(r)); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  ClientOptions Options(const std::string& session, int rank, std::size_t world,
                        const std::string& hook = "no") const {
    return {.address = daemon_.address(),
            .session = session,
            .rank = rank,
            .world_size = static_cast<int>(world),
            .parameters = kModel,
            .hook = *HookSpec::Parse(hook),
            .step_timeout = absl::Seconds(20)};
  }
  std::vector<std::unique_ptr<Client>> Join(const std::string& session,
                                            const conformance::Grouping& grouping,
                                            const std::string& hook = "no") {
    std::vector<std::unique_ptr<Client>> clients(grouping.size());
    const auto joined = OnEach(grouping.size(), [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      auto client = conformance::JoinGroup(Options(session, rank, grouping.size(), hook),
                                           grouping[r], place_);
      if (client.ok()) clients[r] = *std::move(client);
      return client.status();
    });
    for (const absl::Status& status : joined) EXPECT_EQ(status, absl::OkStatus());
    return clients;
  }
  static void Step(std::vector<std::unique_ptr<Client>>& clients) {
    const auto done = OnEach(clients.size(), [&](int rank) {
      Client& client = *clients[static_cast<std::size_t>(rank)];
      Bucket bucket(rank);
      if (absl::Status status = client.AllReduce(*bucket).Wait(); !status.ok()) return status;
      return client.EndStep().status();
    });
    for (const absl::Status& status : done) EXPECT_EQ(status, absl::OkStatus());
  }
  v1::SessionStatus StatusOf(const std::string& session) const {
    const auto admin = v1::AdminService::NewStub(
        grpc::CreateChannel(daemon_.address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::GetSessionRequest request;
    request.set_session(session);
    v1::GetSessionResponse response;
    EXPECT_TRUE(admin->GetSession(&context, request, &response).ok());
    return response.session();
  }

  testing::TestDaemon daemon_;
  testing::HostMeetingPlace place_;
};

// The daemon's own figures.
TEST_F(NodeGroupsTest, OneGroupOfFourSendsAQuarterOfTheBytes) {
  for (const std::string hook :
       {"no", "fp16", "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=4"}) {
    const std::string name = hook.substr(0, 2);
    auto grouped = Join("grouped-" + name, {"a", "a", "a", "a"}, hook);
    auto single = Join("single-" + name, {"", "", "", ""}, hook);
    for (int step = 0; step < 3; ++step) {
      Step(grouped);
      Step(single);
    }
    const v1::SessionStatus of_group = StatusOf("grouped-" + name);
    const v1::SessionStatus of_singles = StatusOf("single-" + name);
    EXPECT_GT(of_group.contribution_bytes_total(), 0);
    EXPECT_EQ(4 * of_group.contribution_bytes_total(), of_singles.contribution_bytes_total());
    EXPECT_EQ(4 * of_group.result_bytes_total(), of_singles.result_bytes_total());
    for (const v1::MemberStatus& member : of_group.members()) {
      EXPECT_EQ(4 * member.contribution_bytes_total(), of_group.contribution_bytes_total())
          << "rank " << member.rank() << " has another part than a quarter";
    }
  }
}

// The other way round than a death: the member lives, but never comes to the exchange.
TEST_F(NodeGroupsTest, AHungExchangeEndsWithTheStepsTimeout) {
  const conformance::Grouping grouping = {"a", "a"};
  std::vector<std::unique_ptr<Client>> clients(2);
  const auto joined = OnEach(2, [&](int rank) {
    ClientOptions options = Options("hung", rank, 2);
    options.step_timeout = absl::Seconds(1);
    auto client = conformance::JoinGroup(options, "a", place_);
    if (client.ok()) clients[static_cast<std::size_t>(rank)] = *std::move(client);
    return client.status();
  });
  for (const absl::Status& status : joined) ASSERT_EQ(status, absl::OkStatus());
  place_.HangAfter(0);
  const auto done = OnEach(2, [&](int rank) {
    Bucket bucket(rank);
    return clients[static_cast<std::size_t>(rank)]->AllReduce(*bucket).Wait();
  });
  for (const absl::Status& status : done) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  }
}

TEST_F(NodeGroupsTest, AMemberThatNeverHasTheBucketIsNamed) {
  auto clients = Join("late", {"a", "a"});
  Bucket first(0);
  const Completion waits = clients[0]->AllReduce(*first);
  EXPECT_EQ(waits.Wait(absl::Milliseconds(300)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(StatusOf("late").waiting_for(), AllOf(HasSubstr("rank 1"), HasSubstr("bucket [w0")));
  Bucket second(1);
  EXPECT_EQ(clients[1]->AllReduce(*second).Wait(), absl::OkStatus());
  EXPECT_EQ(waits.Wait(), absl::OkStatus());
}

TEST_F(NodeGroupsTest, MembersThatDisagreeAboutTheirBucketsAreTold) {
  auto clients = Join("differ", {"a", "a"});
  Bucket whole(0);
  std::vector<float> part(64 * 64);
  GradBucket other = *GradBucket::Make(0, {DType::kFloat32, part.data(), part.size()}, {kModel[0]});
  const Completion first = clients[0]->AllReduce(*whole);
  const Completion second = clients[1]->AllReduce(other);
  for (const Completion& one : {first, second}) {
    EXPECT_THAT(std::string(one.Wait().message()),
                AllOf(HasSubstr("bucket [w0"), HasSubstr("another member's is")));
  }
}

TEST_F(NodeGroupsTest, AMemberThatEndsTheStepWithoutTheGroupsBucketIsNamed) {
  auto clients = Join("ended", {"a", "a"});
  Bucket first(0);
  const Completion waits = clients[0]->AllReduce(*first);
  EXPECT_FALSE(clients[1]->EndStep().ok());
  EXPECT_THAT(std::string(waits.Wait().message()),
              HasSubstr("rank 1: ended step 0 without bucket [w0"));
}

TEST_F(NodeGroupsTest, DifferentCommunicatorsInOneGroupAreRefused) {
  const auto joined = OnEach(2, [&](int rank) {
    ClientOptions options = Options("versions", rank, 2);
    client::MemberHook hook = *client::MakeMemberHook(options);
    hook.node_group = "a";
    hook.communicators = place_.ForMember(absl::StrCat("host memory ", rank));
    return client::JoinWith(options, std::move(hook)).status();
  });
  for (const absl::Status& status : joined) {
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 1 has host memory 1 and rank 0 of the same node group has "
                                "host memory 0"),
                      HasSubstr("node_group \"off\"")));
  }
}

TEST_F(NodeGroupsTest, StateOfAMemberComesBackToTheSamePlace) {
  const std::string hook =
      "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=2,min_compression_rate=1";
  auto clients = Join("state", {"a", "a"}, hook);
  Step(clients);
  std::vector<std::string> states;
  for (auto& client : clients) states.push_back(*client->StateDict());
  EXPECT_NE(states[0], states[1]);
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(clients[r]->LoadStateDict(states[r]), absl::OkStatus());
    EXPECT_EQ(*clients[r]->StateDict(), states[r]);
    EXPECT_FALSE(clients[r]->LoadStateDict(states[1 - r]).ok());
  }
}

TEST_F(NodeGroupsTest, StateOfAnotherGroupingIsRefused) {
  const std::string hook =
      "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=2,min_compression_rate=1";
  auto pair = Join("pair", {"a", "a"}, hook);
  auto singles = Join("singles", {"", ""}, hook);
  Step(pair);
  Step(singles);
  const std::string of_pair = *pair[0]->StateDict();
  const std::string of_single = *singles[0]->StateDict();
  EXPECT_THAT(std::string(singles[0]->LoadStateDict(of_pair).message()),
              HasSubstr("saved in node groups with 2 shares; this member is without node groups"));
  EXPECT_THAT(std::string(pair[0]->LoadStateDict(of_single).message()),
              HasSubstr("saved without node groups; this member is in node groups with 2 shares"));
}

TEST_F(NodeGroupsTest, ACheckpointHoldsEachResidualOnce) {
  const std::string hook =
      "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=2,min_compression_rate=1";
  auto grouped = Join("once", {"a", "a", "b", "b"}, hook);
  Step(grouped);
  std::map<std::string, int> residuals;  // in all members' states
  for (auto& client : grouped) {
    const HookState state = *ReadSafetensors(*client->StateDict());
    for (const StateTensor& tensor : state.tensors) ++residuals[tensor.name];
  }
  EXPECT_EQ(residuals.size(), kModel.size());
  for (const auto& [name, count] : residuals) EXPECT_EQ(count, 2) << name << ": one in each group";
}

}  // namespace
}  // namespace gradwire

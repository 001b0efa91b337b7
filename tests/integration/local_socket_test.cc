// Members are given one TCP address; those on the daemon's host find its unix socket by themselves.
#include <grpcpp/create_channel.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "gradwire/v1/aggregation.grpc.pb.h"
#include "gtest/gtest.h"
#include "proto/wire/local_proof.h"
#include "proto/wire/proto_conversion.h"
#include "server/daemon/server.h"
#include "tests/testing/certificates.h"
#include "tests/testing/gradients.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::ExpectedReduction;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::ReplaceFile;
using ::gradwire::testing::TemporaryFolder;

const ParameterSpec kParameter = MakeParameter("w", 50'001);

struct Daemon {
  explicit Daemon(const std::string& socket, const std::string& tokens = "") {
    auto started = server::Server::Start(
        {.listen = {"127.0.0.1:0", absl::StrCat("unix:", socket)}, .tokens = tokens});
    if (!started.ok()) throw std::runtime_error(started.status().ToString());
    server = *std::move(started);
  }
  std::string tcp() const { return server->addresses()[0]; }
  std::string local() const { return server->addresses()[1]; }

  std::unique_ptr<server::Server> server;
};

ClientOptions Options(const std::string& address, int world_size = 1) {
  return {.address = address,
          .session = "job",
          .rank = 0,
          .world_size = world_size,
          .parameters = {kParameter},
          .join_timeout = absl::Seconds(20),
          .on_wait = [](const std::string& line) { ADD_FAILURE() << line; }};
}

// One step, compared with what the hook gives in one loop.
absl::Status Train(Client& client, int rank) {
  Gradients gradients({kParameter});
  gradients.Fill(rank, 0);
  GradBucket bucket = gradients.Bucket();
  if (absl::Status reduced = client.AllReduce(bucket).Wait(); !reduced.ok()) return reduced;
  const auto want = ExpectedReduction({}, {kParameter}, client.world_size(), 0, rank);
  if (!want.ok()) return want.status();
  EXPECT_EQ(gradients.bytes(), *want);
  if (const auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
  return absl::OkStatus();
}

// How a member of these options travels: "shared memory", "unix" or "tcp".
std::string Way(const ClientOptions& options) {
  const auto client = Client::Join(options);
  if (!client.ok()) return client.status().ToString();
  ExpectAllOk({Train(**client, 0), (*client)->Leave()});
  const ClientMetrics metrics = (*client)->metrics();
  if (metrics.shared_memory) return metrics.unix_socket ? "shared memory" : "what cannot be";
  return metrics.unix_socket ? "unix" : "tcp";
}

TEST(LocalSocket, IsFoundFromTheTcpAddress) {
  const TemporaryFolder folder;
  const Daemon daemon(folder / "s");
  EXPECT_EQ(Way(Options(daemon.tcp())), "shared memory");
  ClientOptions without = Options(daemon.tcp());
  without.shared_memory = false;
  EXPECT_EQ(Way(without), "unix");
  without.local_socket = false;
  EXPECT_EQ(Way(without), "tcp");
}

TEST(LocalSocket, IsNotUsedWhereTheVariableSaysSo) {
  const TemporaryFolder folder;
  const Daemon daemon(folder / "s");
  setenv("GRADWIRE_LOCAL_SOCKET", "off", 1);
  const std::string way = Way(Options(daemon.tcp()));
  unsetenv("GRADWIRE_LOCAL_SOCKET");
  EXPECT_EQ(way, "tcp");
}

// A member of another host sees no such path.
TEST(LocalSocket, ThatIsNotThereLeavesTheMemberOnTcp) {
  const TemporaryFolder folder;
  const Daemon daemon(folder / "s");
  ASSERT_EQ(std::rename((folder / "s").c_str(), (folder / "away").c_str()), 0);
  EXPECT_EQ(Way(Options(daemon.tcp())), "tcp");
}

// In another container the same path may be another daemon's, even with a session of the same name.
TEST(LocalSocket, OfAnotherDaemonIsNotUsed) {
  const TemporaryFolder folder;
  const Daemon own(folder / "s");
  ASSERT_EQ(std::rename((folder / "s").c_str(), (folder / "away").c_str()), 0);
  const Daemon other(folder / "s");
  ASSERT_EQ(other.local(), own.local());
  EXPECT_EQ(Way(Options(own.tcp())), "tcp");
  EXPECT_EQ(other.server->sessions(), 0);
}

// Each goes its own way in one session, and the status says which.
TEST(LocalSocket, MembersGoDifferentWaysInOneSession) {
  const TemporaryFolder folder;
  const Daemon daemon(folder / "s");
  std::vector<ClientOptions> options(3, Options(daemon.tcp(), 3));
  options[1].shared_memory = false;
  options[2].local_socket = false;
  std::vector<absl::Status> ended(3);
  std::vector<std::unique_ptr<Client>> clients(3);
  std::vector<std::thread> members;
  for (int rank = 0; rank < 3; ++rank) {
    members.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      options[at].rank = rank;
      auto client = Client::Join(options[at]);
      ended[at] = client.status();
      if (!client.ok()) return;
      clients[at] = *std::move(client);
      ended[at] = Train(*clients[at], rank);
    });
  }
  for (std::thread& member : members) member.join();
  ExpectAllOk(ended);
  const auto admin = v1::AdminService::NewStub(
      grpc::CreateChannel(daemon.local(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::GetSessionRequest request;
  request.set_session("job");
  v1::GetSessionResponse response;
  const grpc::Status answer = admin->GetSession(&context, request, &response);
  ASSERT_TRUE(answer.ok()) << answer.error_message();
  std::vector<std::string> ways;
  for (const v1::MemberStatus& member : response.session().members()) {
    ways.push_back(member.transport());
  }
  EXPECT_THAT(ways, ::testing::ElementsAre("shared memory", "unix", "tcp"));
}

// On the socket it is a membership of who the caller is there.
TEST(LocalSocket, WorksWithTokens) {
  const TemporaryFolder folder;
  ReplaceFile(folder / "tokens", "team member job a-token-of-the-team\n");
  ReplaceFile(folder / "token", "a-token-of-the-team\n");
  const Daemon daemon(folder / "s", folder / "tokens");
  ClientOptions options = Options(daemon.tcp());
  options.token_file = folder / "token";
  EXPECT_EQ(Way(options), "shared memory");
  options.session = "another";
  EXPECT_THAT(Way(options), ::testing::HasSubstr("\"another\" is not one that token team may use"));
}

// However the search for the socket and the end of the session meet, both get the reason, and no
// session of that name is left.
TEST(LocalSocket, MembersThatDifferAreBothToldAtOnce) {
  const TemporaryFolder folder;
  const Daemon daemon(folder / "s");
  for (int round = 0; round < 20; ++round) {
    std::vector<absl::Status> ended(2);
    std::vector<std::thread> members;
    for (int rank = 0; rank < 2; ++rank) {
      members.emplace_back([&, rank] {
        ClientOptions options = Options(daemon.tcp(), 2);
        options.session = absl::StrCat("job-", round);
        options.rank = rank;
        options.parameters = {MakeParameter("w", 10 + static_cast<std::size_t>(rank))};
        ended[static_cast<std::size_t>(rank)] = Client::Join(options).status();
      });
    }
    for (std::thread& member : members) member.join();
    for (const absl::Status& status : ended) {
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("[GW202]"));
    }
  }
  EXPECT_EQ(daemon.server->sessions(), 0);
}

// Token and start id do not suffice to make a membership one's own.
TEST(LocalSocket, NobodyElseMovesAMembership) {
  const TemporaryFolder folder;
  const Daemon daemon(folder / "s");
  const auto stub = v1::AggregationService::NewStub(
      grpc::CreateChannel(daemon.tcp(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext join_context;
  v1::JoinRequest join;
  join.set_min_protocol_version(1);
  join.set_max_protocol_version(1);
  join.set_session("job");
  join.set_world_size(2);
  join.set_start_id(7);
  *join.add_manifest() = wire::ToProto(kParameter);
  v1::JoinResponse joined;
  ASSERT_TRUE(stub->Join(&join_context, join, &joined).ok());
  const std::string key = joined.local_socket().key();
  const auto move = [&](std::uint64_t start_id, const std::string& proof) {
    grpc::ClientContext context;
    v1::MoveRequest request;
    request.set_token(joined.token());
    request.set_start_id(start_id);
    request.set_proof(proof);
    v1::MoveResponse response;
    return stub->Move(&context, request, &response).error_code();
  };
  EXPECT_EQ(move(7, ""), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(move(7, wire::ProofOf("another key", joined.token())),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(move(8, wire::ProofOf(key, joined.token())), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(move(7, wire::ProofOf(key, joined.token())), grpc::StatusCode::OK);
}

// A rank that the daemon picks stays the same.
TEST(LocalSocket, KeepsTheRankThatTheDaemonPicked) {
  const TemporaryFolder folder;
  const Daemon daemon(folder / "s");
  ClientOptions options = Options(daemon.tcp(), 2);
  options.rank = -1;
  std::vector<absl::Status> ended(2);
  std::vector<int> ranks(2, -1);
  std::vector<std::thread> members;
  for (std::size_t i = 0; i < 2; ++i) {
    members.emplace_back([&, i] {
      const auto client = Client::Join(options);
      ended[i] = client.status();
      if (!client.ok()) return;
      ranks[i] = (*client)->rank();
      ended[i] = Train(**client, ranks[i]);
    });
  }
  for (std::thread& member : members) member.join();
  ExpectAllOk(ended);
  EXPECT_THAT(ranks, ::testing::UnorderedElementsAre(0, 1));
}

}  // namespace
}  // namespace gradwire

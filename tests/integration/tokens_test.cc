// Who may join what, over TCP with tokens.
#include <grpcpp/create_channel.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "gtest/gtest.h"
#include "server/daemon/server.h"
#include "tests/testing/certificates.h"
#include "tests/testing/gradients.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::Process;
using ::gradwire::testing::ReplaceFile;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

const ParameterSpec kParameter = {.name = "a", .shape = {40, 25}};

class TokensTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write("a-token-of-team-a-only");
    ReplaceFile(folder_ / "b", "a-token-of-team-b-only\n");
    ReplaceFile(folder_ / "root", "a-token-of-an-operator\n");
    auto server =
        server::Server::Start({.listen = {"127.0.0.1:0", absl::StrCat("unix:", folder_ / "s")},
                               .tokens = folder_ / "tokens"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // The daemon's list, and team A's own token.
  void Write(const std::string& token) const {
    ReplaceFile(folder_ / "tokens",
                absl::StrCat("team-a member a-* ", token, "\nteam-b member b-* ",
                             "a-token-of-team-b-only\nroot operator * a-token-of-an-operator\n"));
    ReplaceFile(folder_ / "a", absl::StrCat(token, "\n"));
  }

  ClientOptions Options(const std::string& session, const std::string& token) const {
    return {.address = server_->addresses()[0],
            .session = session,
            .world_size = 2,
            .token_file = token.empty() ? "" : folder_ / token,
            .parameters = {kParameter},
            .hook = {.comm_hook = "power_sgd", .comm_state_option = {{"start_powerSGD_iter", 2}}},
            .local_socket = false,  // what counts there is the user, not the token
            .on_wait = [](const std::string&) {}};
  }
  static std::string Refusal(const ClientOptions& options) {
    return std::string(Client::Join(options).status().message());
  }

  // Some steps, and the session's state in between, which another service carries.
  static std::vector<absl::Status> Train(const ClientOptions& options) {
    return RunRanks(options, [&](Client& client, int rank) -> absl::Status {
      Gradients a({kParameter});
      for (int step = 0; step < 4; ++step) {
        a.Fill(rank, step);
        GradBucket bucket = a.Bucket();
        if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
        if (const auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
        if (const auto state = client.ExportState(); !state.ok()) return state.status();
      }
      return client.Leave();
    });
  }

  TemporaryFolder folder_;
  std::unique_ptr<server::Server> server_;
};

TEST_F(TokensTest, AMemberOfItsSessionsTrains) {
  ExpectAllOk(Train(Options("a-1", "a")));
  ExpectAllOk(Train(Options("b-1", "b")));
}

// Nothing that team B sends ends, joins or shows a session of team A, which waits for a member.
TEST_F(TokensTest, AnotherTeamDoesNotLearnOfASession) {
  auto first = Options("a-1", "a");
  first.rank = 0;
  first.join_timeout = absl::Seconds(60);
  std::thread member([&] { ExpectAllOk({Client::Join(first).status()}); });
  ASSERT_TRUE(Eventually([&] { return server_->sessions() == 1; }));
  auto stranger = Options("a-1", "b");
  stranger.rank = 1;
  stranger.parameters = {MakeParameter("other", 7)};  // a mismatch would end the wait for all
  const std::string there = Refusal(stranger);
  stranger.session = "a-2";
  const std::string not_there = Refusal(stranger);
  EXPECT_THAT(there, AllOf(HasSubstr("\"a-1\" is not one that token team-b may use"),
                           EndsWith(" [GW108]")));
  EXPECT_THAT(not_there, HasSubstr("\"a-2\" is not one that token team-b may use"));
  EXPECT_EQ(server_->sessions(), 1);
  auto second = Options("a-1", "a");
  second.rank = 1;
  ExpectAllOk({Client::Join(second).status()});
  member.join();
}

// An operator of some sessions only neither ends nor holds back another team's.
TEST_F(TokensTest, AnOperatorActsOnItsOwnSessionsOnly) {
  ReplaceFile(
      folder_ / "tokens",
      "team-a member a-* a-token-of-team-a-only\nops-b operator b-* a-token-of-another-one\n");
  auto options = Options("a-1", "a");
  options.rank = 0;
  options.join_timeout = absl::Seconds(60);
  std::thread member(
      [&] { EXPECT_THAT(Refusal(options), HasSubstr("an operator ended the session")); });
  ASSERT_TRUE(Eventually([&] { return server_->sessions() == 1; }));
  const auto admin = v1::AdminService::NewStub(
      grpc::CreateChannel(server_->addresses()[0], grpc::InsecureChannelCredentials()));
  const auto evict = [&] {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer a-token-of-another-one");
    v1::EvictSessionRequest request;
    request.set_session("a-1");
    v1::EvictSessionResponse response;
    return admin->EvictSession(&context, request, &response).error_code();
  };
  ASSERT_TRUE(Eventually([&] { return evict() == grpc::StatusCode::PERMISSION_DENIED; }));
  EXPECT_EQ(server_->sessions(), 1);
  ReplaceFile(folder_ / "tokens", "ops-b operator a-* a-token-of-another-one\n");
  EXPECT_TRUE(Eventually([&] { return evict() == grpc::StatusCode::OK; }));
  member.join();
}

TEST_F(TokensTest, WithoutOrWithAWrongTokenNobodyJoins) {
  EXPECT_THAT(
      Refusal(Options("a-1", "")),
      AllOf(HasSubstr("the daemon asks for a token: give token_file"), EndsWith(" [GW105]")));
  ReplaceFile(folder_ / "wrong", "a-token-that-nobody-has\n");
  EXPECT_THAT(Refusal(Options("a-1", "wrong")),
              AllOf(EndsWith(" [GW106]"), HasSubstr("does not know this token"),
                    Not(HasSubstr("nobody-has"))));
  EXPECT_EQ(server_->sessions(), 0);
}

TEST_F(TokensTest, AUnixSocketNeedsNoToken) {
  auto options = Options("any", "");
  options.address = server_->addresses()[1];
  ExpectAllOk(Train(options));
}

TEST_F(TokensTest, ATokenDoesNotTravelToAnotherHostWithoutTls) {
  auto options = Options("a-1", "a");
  options.address = "198.51.100.7:29610";
  EXPECT_THAT(Refusal(options),
              AllOf(HasSubstr("would travel to 198.51.100.7:29610 without encryption"),
                    EndsWith(" [GW110]")));
}

TEST_F(TokensTest, TheEnvironmentMayHoldTheToken) {
  setenv("GRADWIRE_TOKEN", "a-token-of-team-a-only", 1);
  auto options = Options("a-1", "");
  options.world_size = 1;
  const absl::Status joined = Client::Join(options).status();
  unsetenv("GRADWIRE_TOKEN");
  ExpectAllOk({joined});
}

TEST_F(TokensTest, ATokenIsReplacedWhileADaemonRuns) {
  Write("another-token-of-team-a");
  // The daemon reads its list once a second.
  EXPECT_TRUE(Eventually([&] {
    auto options = Options("a-1", "a");
    options.world_size = 1;
    return Client::Join(options).ok();
  }));
  ReplaceFile(folder_ / "old", "a-token-of-team-a-only\n");
  EXPECT_THAT(Refusal(Options("a-1", "old")), HasSubstr("does not know this token"));
}

TEST_F(TokensTest, TheToolShowsWhatATokenMaySee) {
  auto options = Options("a-1", "a");
  options.world_size = 1;
  const auto client = Client::Join(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const auto ctl = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {GRADWIRE_CTL, "--address", server_->addresses()[0]});
    auto process = Process::Start(words, folder_ / "ctl.log");
    if (!process.ok()) return std::string(process.status().message());
    (*process)->Wait(absl::Seconds(10));
    return (*process)->Log();
  };
  EXPECT_THAT(ctl({"--token-file", folder_ / "root", "status"}), HasSubstr("a-1"));
  EXPECT_THAT(ctl({"--token-file", folder_ / "a", "session", "get", "a-1"}), HasSubstr("a-1"));
  EXPECT_THAT(ctl({"--token-file", folder_ / "b", "session", "get", "a-1"}),
              HasSubstr("is not one that token team-b may use"));
  EXPECT_THAT(ctl({"status"}),
              HasSubstr("asks for a token: give token_file (GRADWIRE_TOKEN_FILE) [GW105]\n"));
  EXPECT_THAT(ctl({"health"}), HasSubstr("serving"));
}

}  // namespace
}  // namespace gradwire

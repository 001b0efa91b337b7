// Admin calls on addresses of their own.
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <sys/stat.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "server/access/permissions.h"
#include "server/daemon/server.h"
#include "tests/testing/certificates.h"
#include "tests/testing/gradients.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::Process;
using ::gradwire::testing::ReplaceFile;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kGetServer[] = "/gradwire.v1.AdminService/GetServer";
constexpr char kOwnAddresses[] = "admin calls have addresses of their own (--admin-listen)";

// One empty message to any method, and the status; OK as soon as an answer comes.
grpc::Status Call(const std::string& address, const std::string& method,
                  const std::string& token = "") {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  grpc::GenericStub stub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
  const auto call = stub.PrepareCall(&context, method, &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(&queue);
  wait();
  const grpc::Slice nothing;
  call->WriteLast(grpc::ByteBuffer(&nothing, 1), grpc::WriteOptions(), &queue);
  wait();
  grpc::ByteBuffer answer;
  call->Read(&answer, &queue);
  const bool answered = wait();
  if (answered) context.TryCancel();
  grpc::Status status;
  call->Finish(&status, &queue);
  wait();
  queue.Shutdown();
  while (wait()) {
  }
  return answered ? grpc::Status::OK : status;
}

// Not the UNIMPLEMENTED of a join without a version.
bool IsUnknown(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
         absl::StrContains(status.error_message(), "unknown method");
}

class AdminListen : public ::testing::Test {
 protected:
  void Start(server::ServerOptions options = {}) {
    options.listen = {"127.0.0.1:0"};
    options.admin_listen = {"127.0.0.1:0", absl::StrCat("unix:", folder_ / "admin")};
    auto server = server::Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ASSERT_THAT(server_->addresses(), SizeIs(1));
    ASSERT_THAT(server_->admin_addresses(), SizeIs(2));
  }
  std::string members() const { return server_->addresses()[0]; }
  std::string admin(std::size_t i = 0) const { return server_->admin_addresses()[i]; }

  // What `gradwirectl` prints.
  std::string Ctl(const std::string& address, std::vector<std::string> words) const {
    words.insert(words.begin(), {GRADWIRE_CTL, "--address", address});
    auto process = Process::Start(words, folder_ / "ctl.log");
    if (!process.ok()) return std::string(process.status().message());
    (*process)->Wait(absl::Seconds(10));
    return (*process)->Log();
  }

  TemporaryFolder folder_;
  std::unique_ptr<server::Server> server_;
};

// Goes by the table, so that a new call is tested where it belongs.
TEST_F(AdminListen, EachCallIsServedWhereTheTableSays) {
  Start();
  int for_admin = 0;
  for (const server::Permission& permission : server::Permissions()) {
    const grpc::Status there = Call(members(), permission.method);
    if (permission.admin) {
      ++for_admin;
      EXPECT_EQ(there.error_code(), grpc::StatusCode::PERMISSION_DENIED) << permission.method;
      EXPECT_THAT(there.error_message(),
                  AllOf(HasSubstr(kOwnAddresses), HasSubstr(admin(0)), HasSubstr(admin(1))));
    } else {
      EXPECT_NE(there.error_code(), grpc::StatusCode::PERMISSION_DENIED) << permission.method;
      EXPECT_FALSE(IsUnknown(there)) << permission.method;
    }
    for (const std::string& address : server_->admin_addresses()) {
      const grpc::Status here = Call(address, permission.method);
      const bool training = absl::StrContains(permission.method, ".AggregationService/");
      EXPECT_EQ(IsUnknown(here), training) << permission.method << ": " << here.error_message();
      EXPECT_NE(here.error_code(), grpc::StatusCode::PERMISSION_DENIED) << permission.method;
    }
  }
  EXPECT_EQ(for_admin, 9);
}

TEST_F(AdminListen, MembersSaveTheirStateOnTheirOwnAddress) {
  Start();
  const ParameterSpec parameter{.name = "a", .shape = {40, 25}};
  const ClientOptions options{
      .address = members(),
      .session = "s",
      .world_size = 2,
      .parameters = {parameter},
      .hook = {.comm_hook = "power_sgd", .comm_state_option = {{"start_powerSGD_iter", 2}}}};
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
    Gradients gradients({parameter});
    gradients.Fill(rank, 0);
    GradBucket bucket = gradients.Bucket();
    if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
    if (const auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
    if (const auto state = client.ExportState(); !state.ok()) return state.status();
    return client.Leave();
  }));
  EXPECT_THAT(Ctl(admin(), {"status"}), HasSubstr("s "));
}

TEST_F(AdminListen, TheAddressesAreForThoseWhoMayCallThere) {
  ReplaceFile(folder_ / "tokens",
              "team member * a-token-of-a-member\nops operator * a-token-of-an-operator\n");
  Start({.tokens = folder_ / "tokens"});
  const auto message = [&](const std::string& token) {
    return Call(members(), kGetServer, token).error_message();
  };
  EXPECT_THAT(message("a-token-of-an-operator"),
              AllOf(HasSubstr(kOwnAddresses), HasSubstr(admin())));
  EXPECT_THAT(message("a-token-of-a-member"),
              AllOf(HasSubstr("has the role member"), Not(HasSubstr(admin()))));
  EXPECT_THAT(message(""), AllOf(HasSubstr("asks for a token"), Not(HasSubstr(admin()))));
  // Tokens count there too.
  EXPECT_TRUE(Call(admin(), kGetServer, "a-token-of-an-operator").ok());
  EXPECT_EQ(Call(admin(), kGetServer).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(AdminListen, TheToolSaysWhatToDo) {
  Start();
  EXPECT_THAT(Ctl(members(), {"status"}),
              AllOf(HasSubstr(kOwnAddresses),
                    HasSubstr("give one of them with --address or GRADWIRE_ADDRESS")));
  EXPECT_THAT(Ctl(admin(), {"sessions"}), Not(HasSubstr("gradwirectl:")));
  EXPECT_THAT(Ctl(admin(1), {"version"}), HasSubstr("gradwired "));
  for (const std::string& address : {members(), admin(0), admin(1)}) {
    EXPECT_THAT(Ctl(address, {"health"}), HasSubstr("serving")) << address;
  }
}

// Members' connections use up their limit, and operators still get in.
TEST_F(AdminListen, AFullMembersPortKeepsNoOperatorOut) {
  Start({.max_connections = 1});
  const auto channel = grpc::CreateChannel(members(), grpc::InsecureChannelCredentials());
  ASSERT_TRUE(
      channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10)));
  EXPECT_EQ(Call(members(), kGetServer).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Call(admin(), kGetServer).ok());
}

TEST_F(AdminListen, ItIsServedWhileTheDaemonDrains) {
  Start({.socket_mode = "0666"});
  struct stat info {};
  ASSERT_EQ(stat((folder_ / "admin").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  server_->BeginDrain();
  EXPECT_THAT(Ctl(admin(), {"health"}), HasSubstr("not serving"));
  EXPECT_TRUE(Call(admin(), kGetServer).ok());
  const std::string address = admin();
  server_->Shutdown(absl::ZeroDuration());
  EXPECT_EQ(Call(address, kGetServer).error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace gradwire

// Users of this host on a unix socket: who they are, and what they may do. Needs root, because the
// tests' other users are made with setresuid.
#include <grpcpp/client_context.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "gtest/gtest.h"
#include "server/daemon/server.h"
#include "tests/testing/certificates.h"
#include "tests/testing/gradients.h"
#include "tests/testing/host_user.h"
#include "tests/testing/memory_offers.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"
#include "tests/testing/raw_member.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ChannelOf;
using ::gradwire::testing::ConnectAs;
using ::gradwire::testing::Eventually;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::OfferMemoryOver;
using ::gradwire::testing::Process;
using ::gradwire::testing::RawMember;
using ::gradwire::testing::ReplaceFile;
using ::gradwire::testing::SealedFd;
using ::gradwire::testing::TemporaryFolder;
using ::testing::HasSubstr;

constexpr uid_t kTeamA = 4242;
constexpr uid_t kWatcher = 4243;
constexpr uid_t kStranger = 4244;
constexpr uid_t kAlsoTeamA = 4245;
constexpr char kTokenOfB[] = "a-token-of-team-b-only";

class SocketUsers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to connect as other users of this host";
    ASSERT_EQ(chmod(folder_.path().c_str(), 0711), 0);
    Write("");
    Start({.tokens = folder_ / "tokens", .socket_mode = "0666"});
  }

  struct Wanted {
    std::string tokens = {};
    std::string socket_mode = {};
    int max_connections = 4096;
  };
  void Start(const Wanted& wanted) {
    server_.reset();
    auto server = server::Server::Start({.listen = {address()},
                                         .socket_mode = wanted.socket_mode,
                                         .tokens = wanted.tokens,
                                         .max_connections = wanted.max_connections});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void Write(const std::string& more) const {
    ReplaceFile(folder_ / "tokens", absl::StrCat("team-a member a-* uid:", kTeamA,
                                                 "\nalso-a member a-* uid:", kAlsoTeamA,
                                                 "\nwatch observer * uid:", kWatcher,
                                                 "\nteam-b member b-* ", kTokenOfB, "\n", more));
  }

  std::string socket() const { return folder_ / "s"; }
  std::string address() const { return absl::StrCat("unix:", socket()); }

  static v1::JoinRequest Join(const std::string& session) {
    return RawMember::MakeJoin(
        {.session = session, .rank = 0, .world_size = 2, .parameters = {MakeParameter("w", 100)}});
  }
  absl::Status JoinAs(uid_t user, const std::string& session) const {
    return RawMember(ChannelOf(user, socket())).Join(Join(session)).status();
  }
  grpc::Status GetServer(const std::shared_ptr<grpc::Channel>& channel,
                         const std::string& token = "") const {
    const auto stub = v1::AdminService::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
    v1::GetServerResponse response;
    return stub->GetServer(&context, {}, &response);
  }
  // Whether the daemon closes the connection without a word.
  static bool IsClosed(const UniqueFd& connection) {
    char byte = 0;
    return Eventually([&] {
      const ssize_t got = recv(connection.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno == ECONNRESET);
    });
  }

  TemporaryFolder folder_;
  std::unique_ptr<server::Server> server_;
};

TEST_F(SocketUsers, AUserHasTheRoleAndTheSessionsOfItsLine) {
  EXPECT_TRUE(JoinAs(kTeamA, "a-1").ok());
  const absl::Status other = JoinAs(kTeamA, "b-1");
  EXPECT_EQ(other.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(other.message()),
              HasSubstr("\"b-1\" is not one that uid:4242 (team-a) may use"));
  EXPECT_EQ(GetServer(ChannelOf(kTeamA, socket())).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(GetServer(ChannelOf(kWatcher, socket())).ok());
  EXPECT_EQ(JoinAs(kWatcher, "a-1").code(), absl::StatusCode::kPermissionDenied);
  // The daemon's own user, which is root here.
  EXPECT_TRUE(GetServer(ChannelOf(0, socket())).ok());
}

TEST_F(SocketUsers, AUserWithoutALineNeedsAToken) {
  const auto channel = ChannelOf(kStranger, socket());
  const grpc::Status refused = GetServer(channel);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(refused.error_message(), HasSubstr("the daemon asks uid 4244 for a token"));
  // The same connection, so that one call's token is not another's.
  const grpc::Status denied = GetServer(channel, kTokenOfB);
  EXPECT_EQ(denied.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(denied.error_message(), HasSubstr("uid:4244 (team-b) has the role member"));
  EXPECT_EQ(GetServer(channel).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(SocketUsers, ANewLineCountsWithoutARestart) {
  const auto channel = ChannelOf(kStranger, socket());
  ASSERT_FALSE(GetServer(channel).ok());
  Write(absl::StrCat("ops operator * uid:", kStranger, "\n"));
  // The daemon reads its list once a second.
  EXPECT_TRUE(Eventually([&] { return GetServer(channel).ok(); }));
}

// Whoever learns a member's token of its membership has nothing of it as another user, even with
// the same rights.
TEST_F(SocketUsers, AMembershipIsOfOneUser) {
  RawMember member(ChannelOf(kTeamA, socket()));
  const v1::JoinRequest request = Join("a-1");
  const auto joined = member.Join(request);
  ASSERT_TRUE(joined.ok()) << joined.status();
  const auto offer_as = [&](uid_t user) {
    return OfferMemoryOver(ConnectAs(user, socket()), joined->token(), request.start_id(),
                           SealedFd(4096))
        .status;
  };
  const auto stream_as = [&](uid_t user, bool bulk) {
    RawMember thief(ChannelOf(user, socket()));
    bulk ? thief.OpenBulk() : thief.OpenStream();
    v1::Frame frame;
    v1::Hello& hello = *frame.mutable_header()->mutable_hello();
    hello.set_token(joined->token());
    hello.set_start_id(request.start_id());
    hello.set_pair(bulk ? 7 : 0);
    thief.Send(frame);
    return thief.Read().has_value() ? absl::OkStatus() : thief.Finish();
  };
  for (const uid_t thief : {kAlsoTeamA, kStranger, uid_t{0}}) {
    EXPECT_FALSE(offer_as(thief).ok()) << thief;
    EXPECT_FALSE(stream_as(thief, false).ok()) << thief;
    EXPECT_FALSE(stream_as(thief, true).ok()) << thief;
    EXPECT_FALSE(
        RawMember(ChannelOf(thief, socket())).Leave(joined->token(), request.start_id()).ok())
        << thief;
  }
  EXPECT_TRUE(offer_as(kTeamA).ok());
  // A connection of its own is the same user's.
  const absl::Status left =
      RawMember(ChannelOf(kTeamA, socket())).Leave(joined->token(), request.start_id());
  EXPECT_TRUE(left.ok()) << left;
}

TEST_F(SocketUsers, MembersOfTwoUsersTrainOverSharedMemory) {
  // Other users may not reach the folder of the build.
  const std::string program = folder_ / "member";
  std::filesystem::copy(GRADWIRE_TEST_MEMBER, program);
  std::vector<std::unique_ptr<Process>> members;
  for (const uid_t user : {kTeamA, kAlsoTeamA}) {
    auto member = Process::Start(
        {"/usr/bin/setpriv", absl::StrCat("--reuid=", user), absl::StrCat("--regid=", user),
         "--clear-groups", program, "--address", address(), "--session", "a-1", "--world-size", "2",
         "--steps", "3", "--shares-memory", "1"},
        folder_ / absl::StrCat("member-", user));
    ASSERT_TRUE(member.ok()) << member.status();
    members.push_back(*std::move(member));
  }
  for (const auto& member : members) {
    EXPECT_EQ(member->Wait(absl::Seconds(30)), 0) << member->Log();
    EXPECT_THAT(member->Log(), HasSubstr("done"));
  }
}

TEST_F(SocketUsers, WithoutTokensOtherUsersAreRefused) {
  Start({.socket_mode = "0666"});
  const grpc::Status refused = GetServer(ChannelOf(kTeamA, socket()));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(refused.error_message(),
              HasSubstr("uid 4242 may connect (--socket-mode), but the "
                        "daemon has no --tokens with a line for uid:4242"));
  EXPECT_TRUE(GetServer(ChannelOf(0, socket())).ok());
}

TEST_F(SocketUsers, TheModeSaysWhoCanConnect) {
  for (const char* mode : {"0600", "0660"}) {
    Start({.tokens = folder_ / "tokens", .socket_mode = mode});
    EXPECT_FALSE(ConnectAs(kTeamA, socket()).valid()) << mode;
    EXPECT_TRUE(ConnectAs(0, socket()).valid()) << mode;
  }
}

TEST_F(SocketUsers, OneUserLeavesConnectionsToTheOthers) {
  Start({.tokens = folder_ / "tokens", .socket_mode = "0666", .max_connections = 8});
  std::vector<UniqueFd> open;
  for (int i = 0; i < 2; ++i) open.push_back(ConnectAs(kStranger, socket()));
  EXPECT_TRUE(IsClosed(ConnectAs(kStranger, socket())));
  EXPECT_TRUE(GetServer(ChannelOf(kWatcher, socket())).ok());
  open.clear();
  EXPECT_TRUE(Eventually([&] {
    return GetServer(ChannelOf(kStranger, socket())).error_code() ==
           grpc::StatusCode::UNAUTHENTICATED;
  }));
}

TEST_F(SocketUsers, MoreUsersThanTheDaemonTellsApartAreClosed) {
  constexpr uid_t kFirst = 5000;
  constexpr uid_t kSlots = 62;
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (uid_t i = 0; i < kSlots; ++i) {
    channels.push_back(ChannelOf(kFirst + i, socket()));
    EXPECT_THAT(GetServer(channels.back()).error_message(),
                HasSubstr(absl::StrCat("uid ", kFirst + i, " ")));
  }
  EXPECT_TRUE(IsClosed(ConnectAs(kFirst + kSlots, socket())));
  // The daemon's own user has a place, whoever came first.
  EXPECT_TRUE(GetServer(ChannelOf(0, socket())).ok());
}

}  // namespace
}  // namespace gradwire

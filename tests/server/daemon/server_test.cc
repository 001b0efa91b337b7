#include "server/daemon/server.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "proto/wire/status.h"
#include "server/session/registry.h"
#include "tests/testing/ranks.h"
#include "tests/testing/raw_member.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::RawMember;
using ::gradwire::testing::TestDaemon;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::uint64_t kNumel = 1000;

ClientOptions MemberOptions(const TestDaemon& daemon, int rank, int world_size = 2) {
  return {.address = daemon.address(),
          .session = "s",
          .rank = rank,
          .world_size = world_size,
          .parameters = {ParameterSpec{.name = "w", .shape = {1000}, .dtype = DType::kFloat32}},
          .hook = {}};
}

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
}

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
}

v1::GetServerResponse GetServer(const std::string& address) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GetServerResponse response;
  const grpc::Status status =
      v1::AdminService::NewStub(Connect(address))->GetServer(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

absl::StatusOr<v1::SessionStatus> GetSession(const std::string& address, const std::string& name) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GetSessionRequest request;
  request.set_session(name);
  v1::GetSessionResponse response;
  const grpc::Status status =
      v1::AdminService::NewStub(Connect(address))->GetSession(&context, request, &response);
  if (!status.ok()) return wire::FromGrpc(status);
  return response.session();
}

// Two members that have their Welcome.
struct Pair {
  explicit Pair(const TestDaemon& daemon) : a(daemon.address()), b(daemon.address()) {
    joined_a = *a.Begin(MemberOptions(daemon, 0));
    joined_b = *b.Begin(MemberOptions(daemon, 1));
    EXPECT_TRUE(a.ReadUntil(v1::Header::kWelcome).has_value());
    EXPECT_TRUE(b.ReadUntil(v1::Header::kWelcome).has_value());
  }

  RawMember a;
  RawMember b;
  v1::JoinResponse joined_a;
  v1::JoinResponse joined_b;
};

TEST(ServerTest, ListensOnTcpAndUnixAtOnce) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "s";
  auto server = Server::Start({.listen = {"127.0.0.1:0", "unix:" + path}});
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_EQ((*server)->addresses().size(), 2u);
  for (const std::string& address : (*server)->addresses()) {
    EXPECT_FALSE(GetServer(address).version().empty()) << address;
  }
  EXPECT_EQ(Server::Start({.listen = {"unix:" + path}}).status().code(),
            absl::StatusCode::kUnavailable);
  (*server)->Shutdown(absl::Seconds(1));
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(ServerTest, SaysHowItIs) {
  const TestDaemon daemon({.memory_limit = "1GiB"});
  const Pair pair(daemon);
  const v1::GetServerResponse server = GetServer(daemon.address());
  EXPECT_EQ(server.sessions(), 1u);
  // The transport has an eighth.
  EXPECT_EQ(server.memory_limit_bytes(), std::uint64_t{7} << 27);
  EXPECT_GT(server.reserved_bytes(), 0u);
  EXPECT_GE(server.connections(), 2u);
  const auto session = GetSession(daemon.address(), "s");
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->state(), "running");
  EXPECT_EQ(session->gradient_bytes(), kNumel * 4);
  EXPECT_EQ(session->members(1).state(), "connected");
  EXPECT_THAT(session->waiting_for(), HasSubstr("begin step 0"));
  EXPECT_EQ(GetSession(daemon.address(), "other").status(), UnknownSession("other"));
}

TEST(ServerTest, TakesMembersThroughAStep) {
  const TestDaemon daemon;
  Pair pair(daemon);
  std::thread other([&] { EXPECT_TRUE(pair.b.Announce(pair.joined_b, {0}, kNumel).ok()); });
  const auto id = pair.a.Announce(pair.joined_a, {0}, kNumel);
  other.join();
  ASSERT_TRUE(id.ok());
  for (RawMember* member : {&pair.a, &pair.b}) {
    v1::Frame frame;
    v1::Contribution* contribution = frame.mutable_header()->mutable_contribution();
    *contribution->mutable_id() = *id;
    contribution->set_generation(pair.joined_a.generation());
    contribution->set_rank(member == &pair.a ? 0 : 1);
    frame.set_payload(std::string(kNumel * 4, '\0'));
    EXPECT_TRUE(member->Send(frame));
  }
  for (RawMember* member : {&pair.a, &pair.b}) {
    const auto result = member->ReadUntil(v1::Header::kResult);
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->payload(), std::string(kNumel * 4, '\0'));
    const auto done = member->ReadUntil(v1::Header::kStepDone);
    ASSERT_TRUE(done.has_value());
    EXPECT_EQ(done->header().step_done().verdict(), v1::STEP_VERDICT_APPLY);
  }
}

TEST(ServerTest, AMemberWithManyParametersHasLongerToOpenItsStream) {
  const TestDaemon daemon({.token_timeout = absl::Seconds(5)});
  ClientOptions options = MemberOptions(daemon, 0);
  RawMember few(daemon.address());
  const auto usual = few.Join(RawMember::MakeJoin(options));
  ASSERT_TRUE(usual.ok()) << usual.status();
  EXPECT_EQ(usual->token_timeout().seconds(), 5);
  options.session = "large";
  for (int i = 1; i < 50'000; ++i) {
    options.parameters.push_back({.name = absl::StrCat(i), .shape = {1}});
  }
  const auto longer = few.Join(RawMember::MakeJoin(options));
  ASSERT_TRUE(longer.ok()) << longer.status();
  EXPECT_EQ(longer->token_timeout().seconds(), 6);
}

TEST(ServerTest, LeavingClosesTheSessionAndReturnsItsMemory) {
  const TestDaemon daemon;
  {
    Pair pair(daemon);
    const auto leave = [&](RawMember& member, const v1::JoinResponse& joined,
                           std::uint64_t start_id) {
      return member.Leave(joined.token(), start_id);
    };
    EXPECT_EQ(leave(pair.a, pair.joined_a, 1).code(), absl::StatusCode::kPermissionDenied);
  }
  // Both streams broke without a Leave: the session fails after the grace.
  EXPECT_TRUE(Eventually([&] { return GetServer(daemon.address()).reserved_bytes() == 0; }));
  const auto session = GetSession(daemon.address(), "s");
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->state(), "failed");
}

TEST(ServerTest, AMemberThatDiesWhileJoiningLeavesATrace) {
  const TestDaemon daemon;
  {
    RawMember only(daemon.address());
    ASSERT_TRUE(only.Begin(MemberOptions(daemon, 0)).ok());
    EXPECT_TRUE(Eventually([&] {
      const auto session = GetSession(daemon.address(), "s");
      return session.ok() && session->members(0).state() == "connected";
    }));
    only.Cancel();
  }
  EXPECT_TRUE(Eventually([&] { return GetServer(daemon.address()).sessions() == 0; }));
  const auto session = GetSession(daemon.address(), "s");
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(session->state(), "failed");
  EXPECT_THAT(session->waiting_for(),
              HasSubstr("rank 0's stream ended before all 2 members had joined"));
}

TEST(ServerTest, WatchTellsOfEveryStateUntilTheEnd) {
  const TestDaemon daemon;
  auto pair = std::make_unique<Pair>(daemon);
  const auto stub = v1::AggregationService::NewStub(Connect(daemon.address()));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchRequest request;
  request.set_session("s");
  const auto watch = stub->Watch(&context, request);
  v1::WatchResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.state(), "running");
  pair.reset();
  while (watch->Read(&response)) {
  }
  EXPECT_EQ(response.state(), "failed");
  EXPECT_THAT(response.waiting_for(), HasSubstr("rank"));
  EXPECT_TRUE(watch->Finish().ok());
}

TEST(ServerTest, WatchingNothingIsNotFound) {
  const TestDaemon daemon;
  const auto stub = v1::AggregationService::NewStub(Connect(daemon.address()));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchRequest request;
  request.set_session("s");
  const auto watch = stub->Watch(&context, request);
  v1::WatchResponse response;
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(ServerTest, DrainWaitsForRunningSessions) {
  TestDaemon daemon;
  Pair pair(daemon);
  EXPECT_FALSE(daemon.server().Drain(absl::Milliseconds(50)));
  EXPECT_TRUE(GetServer(daemon.address()).draining());
  RawMember late(daemon.address());
  ClientOptions options = MemberOptions(daemon, 0);
  options.session = "another";
  EXPECT_EQ(late.Begin(options).status().code(), absl::StatusCode::kUnavailable);
  // The running session is still served.
  EXPECT_EQ(GetSession(daemon.address(), "s")->state(), "running");
  pair.a.Cancel();
  pair.b.Cancel();
  EXPECT_TRUE(daemon.server().Drain(absl::Seconds(10)));
}

TEST(ServerTest, ShutdownTellsTheMembersWhy) {
  TestDaemon daemon;
  Pair pair(daemon);
  std::thread shutdown([&] { daemon.server().Shutdown(absl::Seconds(5)); });
  for (RawMember* member : {&pair.a, &pair.b}) {
    const absl::Status status = member->AwaitFailure();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("shutting down"));
    EXPECT_FALSE(member->Read().has_value());
    EXPECT_EQ(member->Finish().code(), absl::StatusCode::kUnavailable);
  }
  shutdown.join();
}

TEST(ServerTest, TheStreamEndsWithTheSameStatusAsTheFailureFrame) {
  const TestDaemon daemon;
  Pair pair(daemon);
  v1::Frame stray;
  stray.mutable_header()->mutable_grant();
  EXPECT_TRUE(pair.b.Send(stray));
  for (RawMember* member : {&pair.a, &pair.b}) {
    const auto failure = member->ReadUntil(v1::Header::kWelcome);
    EXPECT_FALSE(failure.has_value());
    EXPECT_FALSE(member->Read().has_value());
    const absl::Status status = member->Finish();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  }
}

TEST(ServerTest, RefusesBadJoinsByName) {
  const TestDaemon daemon;
  RawMember member(daemon.address());
  const auto refused = [&](const std::function<void(v1::JoinRequest&)>& spoil) {
    v1::JoinRequest request = RawMember::MakeJoin(MemberOptions(daemon, 0));
    spoil(request);
    return member.Join(request).status();
  };
  EXPECT_THAT(refused([](auto& r) { r.set_world_size(0); }).ToString(),
              HasSubstr("world_size is 0"));
  EXPECT_THAT(refused([](auto& r) { r.set_rank(2); }).ToString(), HasSubstr("rank is 2"));
  EXPECT_THAT(refused([](auto& r) { r.set_session("a b"); }).ToString(), HasSubstr("session"));
  EXPECT_THAT(refused([](auto& r) { r.set_start_id(0); }).ToString(), HasSubstr("start_id is 0"));
  EXPECT_THAT(refused([](auto& r) { r.set_min_protocol_version(2); }).ToString(),
              HasSubstr("this daemon supports 1"));
  EXPECT_THAT(refused([](auto& r) { r.mutable_join_timeout()->set_seconds(-1); }).ToString(),
              HasSubstr("join_timeout"));
  EXPECT_EQ(GetServer(daemon.address()).sessions(), 0u);
}

}  // namespace
}  // namespace gradwire::server

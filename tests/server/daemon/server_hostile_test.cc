// What peers do that are no members.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "server/daemon/server.h"
#include "tests/testing/ranks.h"
#include "tests/testing/raw_member.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::OpenDescriptors;
using ::gradwire::testing::RawMember;
using ::gradwire::testing::TestDaemon;
using ::testing::HasSubstr;

ClientOptions MemberOptions(const TestDaemon& daemon, int rank, int world_size) {
  return {.address = daemon.address(),
          .session = "s",
          .rank = rank,
          .world_size = world_size,
          .parameters = {ParameterSpec{.name = "w", .shape = {1000}, .dtype = DType::kFloat32}},
          .hook = {}};
}

UniqueFd ConnectTo(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fd.Reset();
  return fd;
}

bool Serves(const TestDaemon& daemon) {
  const auto stub = v1::AdminService::NewStub(
      grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  v1::GetServerResponse response;
  return stub->GetServer(&context, {}, &response).ok();
}

TEST(ServerHostileTest, SilentConnectionsAboveTheCapDoNotStopTheService) {
  TestDaemon daemon({.max_connections = 40, .handshake_timeout = absl::Milliseconds(500)});
  EXPECT_TRUE(Serves(daemon));
  ASSERT_TRUE(Eventually([&] { return daemon.server().connections() == 0; }));
  const std::size_t before = OpenDescriptors(getpid());

  std::vector<UniqueFd> holders;
  for (int i = 0; i < 200; ++i) holders.push_back(ConnectTo(daemon.socket()));
  // The holders are still there, and silent.
  EXPECT_TRUE(Eventually([&] { return Serves(daemon); }, absl::Seconds(20)));
  EXPECT_TRUE(Eventually([&] { return daemon.server().connections() == 0; }));
  holders.clear();
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors(getpid()) <= before; }));
}

TEST(ServerHostileTest, GarbageIsNoHandshake) {
  TestDaemon daemon;
  const UniqueFd fd = ConnectTo(daemon.socket());
  const std::string garbage(4096, 'x');
  ASSERT_GT(send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  EXPECT_TRUE(Eventually([&] { return daemon.server().connections() == 0; }));
  EXPECT_TRUE(Serves(daemon));
}

// How many of `bytes` the daemon takes, one in 50 ms, before it ends the connection; all of them if
// it does not.
std::size_t TakesOfATrickle(const TestDaemon& daemon, const std::string& bytes) {
  const UniqueFd fd = ConnectTo(daemon.socket());
  for (std::size_t sent = 0; sent < bytes.size(); ++sent) {
    if (send(fd.get(), &bytes[sent], 1, MSG_NOSIGNAL) != 1) return sent;
    pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
    std::array<char, 4096> answer{};
    if (poll(&wait, 1, 50) == 1 && recv(fd.get(), answer.data(), answer.size(), 0) <= 0) {
      return sent + 1;
    }
  }
  return bytes.size();
}

TEST(ServerHostileTest, ATrickleIsNoHandshakeAndNoOffer) {
  TestDaemon daemon({.handshake_timeout = absl::Milliseconds(500)});
  std::string settings(9, '\0');  // an empty SETTINGS frame
  settings[3] = 4;
  const std::string handshake = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings;
  EXPECT_LT(TakesOfATrickle(daemon, handshake), handshake.size());
  const std::string offer = "GWM1" + std::string(100, '\0');
  EXPECT_LT(TakesOfATrickle(daemon, offer), offer.size());
  EXPECT_TRUE(Eventually([&] { return daemon.server().connections() == 0; }));
  EXPECT_TRUE(Serves(daemon));
}

TEST(ServerHostileTest, AStreamWithoutHelloIsEnded) {
  const TestDaemon daemon({.hello_timeout = absl::Milliseconds(200)});
  RawMember member(daemon.address());
  member.OpenStream();
  EXPECT_FALSE(member.Read().has_value());
  const absl::Status status = member.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no Hello"));
}

TEST(ServerHostileTest, TheFirstFrameMustBeAHelloWithAKnownToken) {
  const TestDaemon daemon;
  RawMember member(daemon.address());
  v1::Frame frame;
  frame.mutable_header()->mutable_heartbeat();
  member.OpenStream();
  member.Send(frame);
  EXPECT_FALSE(member.Read().has_value());
  EXPECT_EQ(member.Finish().code(), absl::StatusCode::kInvalidArgument);

  frame.mutable_header()->mutable_hello()->set_token("guess");
  frame.mutable_header()->mutable_hello()->set_start_id(1);
  member.OpenStream();
  member.Send(frame);
  EXPECT_FALSE(member.Read().has_value());
  EXPECT_EQ(member.Finish().code(), absl::StatusCode::kNotFound);
}

TEST(ServerHostileTest, BytesThatAreNoFrameFailTheSessionOfTheirSender) {
  const TestDaemon daemon;
  RawMember other(daemon.address());
  ASSERT_TRUE(other.Begin(MemberOptions(daemon, 0, 2)).ok());
  RawMember member(daemon.address());
  ASSERT_TRUE(member.Begin(MemberOptions(daemon, 1, 2)).ok());
  ASSERT_TRUE(other.ReadUntil(v1::Header::kWelcome).has_value());
  v1::Frame none;  // a frame without a header
  member.Send(none);
  for (RawMember* one : {&member, &other}) {
    const absl::Status status = one->AwaitFailure();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  }
  EXPECT_TRUE(Serves(daemon));
}

TEST(ServerHostileTest, AMessageAboveTheLimitEndsTheStreamOnly) {
  const TestDaemon daemon;
  RawMember member(daemon.address());
  ASSERT_TRUE(member.Begin(MemberOptions(daemon, 0, 1)).ok());
  ASSERT_TRUE(member.ReadUntil(v1::Header::kWelcome).has_value());
  v1::Frame frame;
  frame.mutable_header()->mutable_contribution();
  frame.set_payload(std::string(8 << 20, 'x'));
  member.Send(frame);
  EXPECT_FALSE(member.AwaitFailure().ok());
  EXPECT_TRUE(Serves(daemon));
}

// A megabyte of zeros, compressed, would be a gigabyte before any limit is looked at.
TEST(ServerHostileTest, ACompressedCallIsRefused) {
  const TestDaemon daemon;
  const auto stub = v1::AdminService::NewStub(
      grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials()));
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    context.set_compression_algorithm(algorithm);
    v1::GetSessionRequest request;
    request.set_session(std::string(1 << 16, 's'));
    v1::GetSessionResponse response;
    EXPECT_EQ(stub->GetSession(&context, request, &response).error_code(),
              grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_TRUE(Serves(daemon));
}

TEST(ServerHostileTest, AMemberThatReadsNothingIsCutOff) {
  TestDaemon daemon({.close_timeout = absl::Milliseconds(200)});
  // It joins, and never reads. Its session fails, and its stream goes although nobody took the
  // error.
  RawMember mute(daemon.address());
  ASSERT_TRUE(mute.Begin(MemberOptions(daemon, 0, 1)).ok());
  v1::Frame stray;
  stray.mutable_header()->mutable_grant();
  mute.Send(stray);
  EXPECT_TRUE(Eventually([&] { return daemon.server().idle(); }));
}

TEST(ServerHostileTest, ManyBrokenStreamsLeaveNothingBehind) {
  TestDaemon daemon;
  EXPECT_TRUE(Serves(daemon));
  ASSERT_TRUE(Eventually([&] { return daemon.server().connections() == 0; }));
  const std::size_t before = OpenDescriptors(getpid());
  for (int i = 0; i < 20; ++i) {
    ClientOptions options = MemberOptions(daemon, 0, 1);
    options.session = "s" + std::to_string(i);
    RawMember member(daemon.address());
    ASSERT_TRUE(member.Begin(options).ok());
    if (i % 2 == 0) member.ReadUntil(v1::Header::kWelcome);
  }
  EXPECT_TRUE(
      Eventually([&] { return daemon.server().idle() && daemon.server().sessions() == 0; }));
  EXPECT_TRUE(Eventually([&] { return daemon.server().connections() == 0; }));
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors(getpid()) <= before; }));
}

}  // namespace
}  // namespace gradwire::server

// What a member says while it waits in Join.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/integration/fake_daemon.h"
#include "tests/testing/gradients.h"

namespace gradwire::client {
namespace {

using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kNowhere[] = "unix:/nonexistent/daemon.sock";

// A TCP port where connections are made, and nobody says a word.
class SilentPort {
 public:
  SilentPort() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    listening_ = bind(socket_, any, size) == 0 && listen(socket_, 16) == 0 &&
                 getsockname(socket_, any, &size) == 0;
    port_ = ntohs(address.sin_port);
  }
  ~SilentPort() { close(socket_); }
  SilentPort(const SilentPort&) = delete;
  SilentPort& operator=(const SilentPort&) = delete;

  bool listening() const { return listening_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  const int socket_;
  bool listening_ = false;
  std::uint16_t port_ = 0;
};

class JoinWait : public ::testing::Test {
 protected:
  ClientOptions Options(const std::string& address, absl::Duration connect_timeout) const {
    return {.address = address,
            .session = "waits",
            .rank = 0,
            .world_size = 1,
            .parameters = gradients_.parameters(),
            .connect_timeout = connect_timeout};
  }

  // The status of a Join, and what came on standard error.
  absl::Status JoinAndListen(const ClientOptions& options) {
    ::testing::internal::CaptureStderr();
    absl::Status status = Client::Join(options).status();
    stderr_ = ::testing::internal::GetCapturedStderr();
    return status;
  }

  Gradients gradients_{{MakeParameter("w", {4})}};
  std::string stderr_;
};

TEST_F(JoinWait, ForADaemonIsSaidOnceOnStandardError) {
  const absl::Status status = JoinAndListen(Options(kNowhere, absl::Milliseconds(2500)));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::count(stderr_.begin(), stderr_.end(), '\n'), 1) << stderr_;
  EXPECT_THAT(stderr_, AllOf(HasSubstr("gradwire: "), HasSubstr(kNowhere),
                             HasSubstr("rank 0 waits up to 2.5s")));
}

TEST_F(JoinWait, IsHandedToTheCallbackWhereThereIsOne) {
  std::vector<std::string> lines;
  ClientOptions options = Options(kNowhere, absl::Milliseconds(1500));
  options.on_wait = [&lines](const std::string& line) { lines.push_back(line); };
  EXPECT_FALSE(JoinAndListen(options).ok());
  EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr(kNowhere), Not(HasSubstr("\n")))));
  EXPECT_THAT(stderr_, IsEmpty());
}

TEST_F(JoinWait, ForADaemonThatTakesConnectionsAndSaysNothingIsSaidToo) {
  const SilentPort port;
  ASSERT_TRUE(port.listening());
  const absl::Status status = JoinAndListen(Options(port.address(), absl::Milliseconds(1500)));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(port.address() + " within 1.5s"));
  EXPECT_THAT(stderr_, HasSubstr(port.address()));
}

TEST_F(JoinWait, ThatIsShortIsNotSaid) {
  EXPECT_FALSE(JoinAndListen(Options(kNowhere, absl::Milliseconds(300))).ok());
  EXPECT_THAT(stderr_, IsEmpty());
  const FakeDaemon daemon;
  EXPECT_TRUE(JoinAndListen(Options(daemon.address(), absl::Seconds(10))).ok());
  EXPECT_THAT(stderr_, IsEmpty());
}

TEST_F(JoinWait, ForOtherMembersIsSaid) {
  FakeDaemon daemon;
  daemon.join_response.mutable_silence_timeout()->set_seconds(4);  // which ends this wait
  daemon.exchange = [](int, FakeDaemon::Stream* stream, grpc::ServerContext*) {
    v1::Frame frame;
    while (stream->Read(&frame)) {
    }
    return grpc::Status::OK;
  };
  ClientOptions options = Options(daemon.address(), absl::Seconds(10));
  options.world_size = 2;
  options.join_timeout = absl::Minutes(1);
  EXPECT_FALSE(JoinAndListen(options).ok());
  EXPECT_THAT(stderr_, AllOf(HasSubstr("gradwire: "), HasSubstr("\"waits\""), HasSubstr("rank 0"),
                             HasSubstr("all 2 members"), HasSubstr("1m")));
}

}  // namespace
}  // namespace gradwire::client

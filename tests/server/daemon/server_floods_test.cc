// Peers that flood the daemon with HTTP/2 frames: over TCP, TLS and unix sockets.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "server/daemon/server.h"
#include "server/net/read_guard.h"
#include "tests/testing/certificates.h"
#include "tests/testing/http2_frames.h"
#include "tests/testing/process.h"

namespace gradwire::server {
namespace {

using namespace gradwire::testing::http2;  // NOLINT(google-build-using-namespace): frames
using ::gradwire::testing::Authority;
using ::gradwire::testing::TemporaryFolder;
using ::gradwire::testing::WriteFiles;

enum class Way : std::uint8_t { kTcp, kTls, kUnix };

struct Flood {
  std::string name;
  std::string begin;  // after the preface
  std::string again;  // until the connection ends
};

std::vector<Flood> Floods() {
  const std::string call = CallHeaders("/grpc.health.v1.Health/Check");
  const std::string large = Literal(std::string(3900, 'k'), "v", true);
  const std::string ack = Frame(kSettings, kAck, 0, "");
  // A call that is answered.
  const std::string served = ack + Frame(kHeaders, kEndHeaders, 1, call) +
                             Frame(kData, kEndStream, 1, std::string(5, '\0'));
  const std::string bomb = Frame(kContinuation, 0, 3, "\xbe\xbe");
  return {
      {"references", Frame(kHeaders, 0, 3, call + large),
       Frame(kContinuation, 0, 3, std::string(16'000, '\xbe'))},
      {"few references", Frame(kHeaders, 0, 3, call + large), bomb},
      {"few references, settings acknowledged", ack + Frame(kHeaders, 0, 3, call + large), bomb},
      {"few references, after a call", served + Frame(kHeaders, 0, 3, call + large), bomb},
      {"static references", Frame(kHeaders, 0, 1, call),
       Frame(kContinuation, 0, 1, std::string(16'000, '\xb8'))},
      {"literals", Frame(kHeaders, 0, 1, call),
       Frame(kContinuation, 0, 1, Literal("a", std::string(127, 'b')))},
      {"nothing", Frame(kHeaders, 0, 1, call), Frame(kContinuation, 0, 1, "")},
      {"pings", "", Frame(kPing, 0, 0, "12345678")},
      {"pings after a call", served, Frame(kPing, 0, 0, "12345678")},
      {"settings", "", Frame(kSettings, 0, 0, std::string("\0\4\0\1\0\0", 6))},
      {"priorities", "", Frame(kPriority, 0, 1, std::string("\0\0\0\0\1", 5))},
      {"window updates", "", Frame(kWindowUpdate, 0, 0, std::string("\0\0\0\1", 4))},
      {"a message of 512 MiB",
       ack + Frame(kHeaders, kEndHeaders, 1, CallHeaders("/gradwire.v1.AggregationService/Join")) +
           Frame(kData, 0, 1, std::string("\0\x20\0\0\0", 5)),
       Frame(kData, 0, 1, std::string(16'000, 'x'))},
  };
}

UniqueFd ConnectTo(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::strncpy(to.sun_path, address.c_str() + 5, sizeof to.sun_path - 1);
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) fd.Reset();
    return fd;
  }
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  // An address of its own each time: one that was cut has to wait.
  static std::uint32_t last = INADDR_LOOPBACK;
  sockaddr_in from = to;
  from.sin_addr.s_addr = htonl(++last);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) fd.Reset();
  return fd;
}

// Begins a connection, and then sends and never reads.
class HostilePeer {
 public:
  HostilePeer(const std::string& address, bool tls) : fd_(ConnectTo(address)) {
    if (!tls) {
      EXPECT_TRUE(Send(Begin(), absl::Now() + absl::Seconds(5)));
      return;
    }
    context_.reset(SSL_CTX_new(TLS_client_method()));
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), fd_.get());
    constexpr unsigned char kProtocols[] = {2, 'h', '2'};
    SSL_set_alpn_protos(ssl_.get(), kProtocols, sizeof kProtocols);
    EXPECT_EQ(SSL_connect(ssl_.get()), 1);
    // gRPC loses bytes that come with the end of the handshake if they are many, and ends the
    // connection. So the settings must come first.
    EXPECT_TRUE(Send(Begin(), absl::Now() + absl::Seconds(5)));
    char settings = 0;
    EXPECT_EQ(SSL_read(ssl_.get(), &settings, 1), 1);
  }

  // False: the connection has ended.
  bool Send(const std::string& bytes, absl::Time deadline) {
    std::size_t at = 0;
    while (at < bytes.size()) {
      if (absl::Now() > deadline) return true;
      pollfd wait{.fd = fd_.get(), .events = POLLOUT, .revents = 0};
      if (poll(&wait, 1, 100) < 1) continue;
      if ((wait.revents & (POLLERR | POLLHUP)) != 0) return false;
      const ssize_t sent = SendSome(bytes.substr(at, 8192));
      if (sent < 0 && errno != EAGAIN) return false;
      if (sent > 0) at += static_cast<std::size_t>(sent);
    }
    return true;
  }

 private:
  ssize_t SendSome(const std::string& bytes) const {
    if (ssl_ == nullptr) {
      return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    errno = EIO;
    return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()));
  }

  struct FreeTls {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  UniqueFd fd_;
  std::unique_ptr<SSL_CTX, FreeTls> context_;
  std::unique_ptr<SSL, FreeTls> ssl_;
};

// Of this process, in MiB.
double Memory(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    double kib = 0;
    if (line.rfind(what + ":", 0) == 0 &&
        absl::SimpleAtod(line.substr(what.size() + 1, line.size() - what.size() - 4), &kib)) {
      return kib / 1024;
    }
  }
  return 0;
}

// The most memory that the function needed beside what was there.
template <typename Function>
double Growth(const Function& function) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins here
  const double before = Memory("VmRSS");
  function();
  return Memory("VmHWM") - before;
}

class ServerFloodsTest : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);  // of OpenSSL's writes
    const bool tls = GetParam() == Way::kTls;
    ServerOptions options = {.listen = {GetParam() == Way::kUnix
                                            ? absl::StrCat("unix:", folder_ / "daemon.sock")
                                            : "127.0.0.1:0"}};
    const Authority authority("floods");
    if (tls) {
      options.tls = WriteFiles(folder_.path(), authority.Issue("daemon"), "");
      options.tls.ca.clear();
    }
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    address_ = server_->addresses()[0];
    credentials_ =
        tls ? grpc::SslCredentials({authority.cert(), "", ""}) : grpc::InsecureChannelCredentials();
  }

  bool Serves() const {
    const auto stub = v1::AdminService::NewStub(grpc::CreateChannel(address_, credentials_));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::GetServerResponse response;
    return stub->GetServer(&context, {}, &response).ok();
  }

  // Whether the daemon ends the connection.
  bool Ends(const Flood& flood) const {
    HostilePeer peer(address_, GetParam() == Way::kTls);
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    if (!peer.Send(flood.begin, deadline)) return true;
    std::string many;
    while (many.size() < 100'000) many += flood.again;
    while (absl::Now() < deadline) {
      if (!peer.Send(many, deadline)) return true;
    }
    return false;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Server> server_;
  std::string address_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
};

TEST_P(ServerFloodsTest, AreCutAndCostLittle) {
  ASSERT_TRUE(ReadsAreGuarded());
  EXPECT_TRUE(Serves());
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double kMostMib = 256;  // a sanitizer has memory of its own for each byte
#else
  constexpr double kMostMib = 64;
#endif
  for (const Flood& flood : Floods()) {
    bool ended = false;
    EXPECT_LT(Growth([&] { ended = Ends(flood); }), kMostMib) << flood.name;
    EXPECT_TRUE(ended) << flood.name;
  }
  EXPECT_GT(server_->connections_cut(), 0U);  // gRPC ends some itself
  EXPECT_TRUE(Serves());
}

// Streams that the peer never ends, with headers as large as it likes.
TEST_P(ServerFloodsTest, StreamsAreCutAndCostLittle) {
  HostilePeer peer(address_, GetParam() == Way::kTls);
  const std::string call = CallHeaders("/grpc.health.v1.Health/Watch");
  const std::string large = Literal(std::string(3900, 'k'), "v", true);
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  bool open = peer.Send(Frame(kHeaders, kEndHeaders, 1, call + large), deadline);
  const double growth = Growth([&] {
    for (std::uint32_t stream = 3; open && absl::Now() < deadline; stream += 2) {
      open =
          peer.Send(Frame(kHeaders, kEndHeaders, stream, std::string(25, '\xbe') + call), deadline);
    }
  });
  EXPECT_LT(growth, 64);
  EXPECT_FALSE(open);
  EXPECT_TRUE(Serves());
}

std::string NameOf(const ::testing::TestParamInfo<Way>& way) {
  constexpr std::array kNames = {"Tcp", "Tls", "Unix"};
  return kNames.at(static_cast<std::size_t>(way.param));
}
INSTANTIATE_TEST_SUITE_P(Ways, ServerFloodsTest,
                         ::testing::Values(Way::kTcp, Way::kTls, Way::kUnix), NameOf);

}  // namespace
}  // namespace gradwire::server

// How many bytes HTTP/2 lets a peer have under way: a stream's window and the connection's. The
// smaller one, for each round trip, is all that a link carries, whatever its rate.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "base/unique_fd.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/process.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::TemporaryFolder;
using ::gradwire::testing::TestDaemon;

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr std::size_t kFrameHeader = 9;
constexpr char kSettings = 4;
constexpr char kWindowUpdate = 8;
constexpr std::uint32_t kInitialWindowSize = 4;
constexpr std::int64_t kHttp2Default = 65'535;  // RFC 9113, 6.9.2
constexpr int kSilenceMs = 10'000;

// 250 Mbit/s over a round trip of 100 ms, less what gRPC rounds.
constexpr std::int64_t kEnough = 3'000'000;

std::uint32_t Number(std::string_view bytes) {
  std::uint32_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<std::uint8_t>(byte);
  return number;
}

struct Windows {
  std::int64_t stream = kHttp2Default;
  std::int64_t connection = kHttp2Default;
};

// What the frames so far grant; those of the connection only, since there are no streams.
Windows Granted(std::string_view bytes) {
  Windows windows;
  while (bytes.size() >= kFrameHeader) {
    const std::size_t length = Number(bytes.substr(0, 3));
    if (bytes.size() < kFrameHeader + length) break;
    const char type = bytes[3];
    const std::uint32_t stream = Number(bytes.substr(5, 4));
    std::string_view payload = bytes.substr(kFrameHeader, length);
    bytes.remove_prefix(kFrameHeader + length);
    if (type == kWindowUpdate && stream == 0) windows.connection += Number(payload);
    for (; type == kSettings && payload.size() >= 6; payload.remove_prefix(6)) {
      if (Number(payload.substr(0, 2)) == kInitialWindowSize) {
        windows.stream = Number(payload.substr(2, 4));
      }
    }
  }
  return windows;
}

// Reads until both windows are large, the peer ends the connection, or it is silent.
Windows ReadWindows(int fd, std::string_view preface) {
  std::string got;
  Windows windows;
  for (;;) {
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    std::array<char, 4096> buffer{};
    if (poll(&wait, 1, kSilenceMs) != 1) return windows;
    const ssize_t count = recv(fd, buffer.data(), buffer.size(), 0);
    if (count <= 0) return windows;
    got.append(buffer.data(), static_cast<std::size_t>(count));
    const std::string_view all = got;
    if (all.size() < preface.size()) continue;
    EXPECT_EQ(all.substr(0, preface.size()), preface);
    windows = Granted(all.substr(preface.size()));
    if (std::min(windows.stream, windows.connection) >= kEnough) return windows;
  }
}

sockaddr_un Named(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

UniqueFd Socket(int flags = 0) {
  return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
}

TEST(FlowWindow, TheDaemonLetsMembersSendMegabytesAhead) {
  const TestDaemon daemon;
  const UniqueFd fd = Socket();
  const sockaddr_un address = Named(daemon.socket());
  ASSERT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  std::string hello(kPreface);
  hello += std::string("\0\0\0\4\0\0\0\0\0", kFrameHeader);  // SETTINGS, empty
  ASSERT_EQ(send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(hello.size()));
  const Windows windows = ReadWindows(fd.get(), "");
  EXPECT_GE(windows.stream, kEnough);
  EXPECT_GE(windows.connection, kEnough) << "the sum of all streams";
}

TEST(FlowWindow, AMemberLetsTheDaemonSendMegabytesAhead) {
  const TemporaryFolder folder;
  const std::string path = folder / "listener.sock";
  const UniqueFd listener = Socket(SOCK_NONBLOCK);
  const sockaddr_un address = Named(path);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 4), 0);
  std::thread member([&] {
    EXPECT_FALSE(Client::Join({.address = "unix:" + path,
                               .session = "s",
                               .rank = 0,
                               .world_size = 1,
                               .parameters = {MakeParameter("w", {4})},
                               .connect_timeout = absl::Seconds(2),
                               .on_wait = [](const std::string&) {}})
                     .ok());
  });
  {
    pollfd wait{.fd = listener.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&wait, 1, kSilenceMs), 1);
    const UniqueFd fd(accept(listener.get(), nullptr, nullptr));
    const Windows windows = ReadWindows(fd.get(), kPreface);
    EXPECT_GE(windows.stream, kEnough);
    EXPECT_GE(windows.connection, kEnough) << "the sum of all streams";
  }
  member.join();
}

}  // namespace
}  // namespace gradwire

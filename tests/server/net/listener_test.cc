#include "server/net/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <fstream>
#include <string>

#include "base/unique_fd.h"
#include "tests/testing/process.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool Exists(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0;
}

// Leaves a socket behind, as a daemon that was killed does.
void LeaveSocket(const std::string& path) {
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
}

TEST(ListenerTest, TakesAnyPortAndSaysWhich) {
  const auto v4 = Listener::Open("127.0.0.1:0");
  ASSERT_TRUE(v4.ok()) << v4.status();
  ASSERT_EQ(v4->size(), 1u);
  EXPECT_THAT(v4->front().address(), StartsWith("127.0.0.1:"));
  EXPECT_NE(v4->front().address(), "127.0.0.1:0");
  EXPECT_FALSE(v4->front().is_unix());
}

TEST(ListenerTest, RefusesATakenPort) {
  const auto first = Listener::Open("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  const auto second = Listener::Open(first->front().address());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(first->front().address()));
}

TEST(ListenerTest, SaysThatAFolderIsMissing) {
  const TemporaryFolder folder;
  EXPECT_THAT(std::string(Listener::Open("unix:" + folder / "none/s").status().message()),
              HasSubstr("none/s: its folder does not exist"));
}

TEST(ListenerTest, UnixSocketIsPrivateAndGoesWithTheListener) {
  const TemporaryFolder folder;
  const std::string path = folder / "s";
  {
    const auto listeners = Listener::Open("unix:" + path);
    ASSERT_TRUE(listeners.ok()) << listeners.status();
    EXPECT_EQ(listeners->front().address(), "unix:" + path);
    struct stat info {};
    ASSERT_EQ(lstat(path.c_str(), &info), 0);
    EXPECT_TRUE(S_ISSOCK(info.st_mode));
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_FALSE(Exists(path));
}

TEST(ListenerTest, AUnixSocketHasTheModeThatWasAskedFor) {
  const TemporaryFolder folder;
  for (const mode_t mode : {0600U, 0660U, 0666U}) {
    const auto listeners = Listener::Open("unix:" + folder / "s", mode);
    ASSERT_TRUE(listeners.ok()) << listeners.status();
    struct stat info {};
    ASSERT_EQ(lstat((folder / "s").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, mode);
  }
}

TEST(ListenerTest, ReplacesAStaleSocketOnly) {
  const TemporaryFolder folder;
  const std::string path = folder / "s";
  LeaveSocket(path);
  const auto listeners = Listener::Open("unix:" + path);
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  const auto second = Listener::Open("unix:" + path);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another process listens on"));
  EXPECT_TRUE(Exists(path));

  const std::string file = folder / "file";
  std::ofstream(file) << "content";
  EXPECT_THAT(std::string(Listener::Open("unix:" + file).status().message()),
              HasSubstr("exists and is not a socket"));
  EXPECT_TRUE(Exists(file));
}

TEST(ListenerTest, LeavesASocketThatSomebodyElsePutThere) {
  const TemporaryFolder folder;
  const std::string path = folder / "s";
  {
    const auto listeners = Listener::Open("unix:" + path);
    ASSERT_TRUE(listeners.ok());
    ASSERT_EQ(unlink(path.c_str()), 0);
    LeaveSocket(path);
  }
  EXPECT_TRUE(Exists(path));
}

TEST(ListenerTest, ExplainsWhatAnAddressLooksLike) {
  for (const char* address : {"", "127.0.0.1", ":1", "127.0.0.1:x", "127.0.0.1:65536", "::1:80",
                              "no.such.host.invalid:1", "unix:"}) {
    const absl::Status status = CheckListenAddress(address, true);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr("listen address")) << address;
  }
  EXPECT_FALSE(CheckListenAddress("unix:/" + std::string(200, 'x'), true).ok());
}

}  // namespace
}  // namespace gradwire::server

#include "server/net/read_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "tests/testing/http2_frames.h"

namespace gradwire::server {
namespace {

using namespace gradwire::testing::http2;  // NOLINT(google-build-using-namespace): frames
using ::testing::HasSubstr;

// As gRPC reads: into several buffers.
ssize_t Receive(int fd) {
  std::array<char, 100> first{};
  std::vector<char> second(100'000);
  std::array<iovec, 2> parts = {{{.iov_base = first.data(), .iov_len = first.size()},
                                 {.iov_base = second.data(), .iov_len = second.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return recvmsg(fd, &message, MSG_DONTWAIT);
}

class ReadGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int fds[2] = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    ours_ = UniqueFd(fds[0]);
    theirs_ = UniqueFd(fds[1]);
  }
  void Send(const std::string& bytes) const {
    ASSERT_EQ(send(theirs_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  UniqueFd ours_;
  UniqueFd theirs_;
  std::vector<std::string> told_;
  const ReadGuardOptions options_ = {
      .most_held = 1 << 20,
      .listener = std::make_shared<BreachListener>(
          [this](const GuardedPeer& /*peer*/, const char* what) { told_.emplace_back(what); })};
  const std::string breach_ = Begin() + Frame(kHeaders, 0, 1, Literal("a", "b")) +
                              Frame(kContinuation, 0, 1, std::string(10'000, '\x82'));
};

TEST_F(ReadGuardTest, GuardsThisProgramsReads) { EXPECT_TRUE(ReadsAreGuarded()); }

TEST_F(ReadGuardTest, ABreachDisconnectsAndIsTold) {
  GuardReads(ours_.get(), {}, options_);
  Send(Begin());
  EXPECT_EQ(Receive(ours_.get()), static_cast<ssize_t>(Begin().size()));
  EXPECT_THAT(told_, ::testing::IsEmpty());
  Send(breach_.substr(Begin().size()));
  EXPECT_EQ(Receive(ours_.get()), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_THAT(told_, ::testing::ElementsAre(HasSubstr("headers")));
  char byte = 0;
  EXPECT_LE(recv(theirs_.get(), &byte, 1, 0), 0);
}

TEST_F(ReadGuardTest, NothingIsToldAfterClose) {
  GuardReads(ours_.get(), {}, options_);
  options_.listener->Close();
  Send(breach_);
  EXPECT_EQ(Receive(ours_.get()), -1);
  EXPECT_THAT(told_, ::testing::IsEmpty());
}

// The next descriptor with the same number is another connection.
TEST_F(ReadGuardTest, CloseEndsIt) {
  GuardReads(ours_.get(), {}, options_);
  const int number = ours_.get();
  ours_.Reset();
  SetUp();
  ASSERT_EQ(ours_.get(), number);
  Send(breach_);
  EXPECT_GT(Receive(ours_.get()), 0);
  EXPECT_THAT(told_, ::testing::IsEmpty());
}

TEST_F(ReadGuardTest, ThreadsMayCloseAndRegisterAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int round = 0; round < 2000; ++round) {
        int fds[2] = {-1, -1};
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        GuardReads(fds[0], {}, options_);
        EXPECT_EQ(send(fds[1], Begin().data(), Begin().size(), 0),
                  static_cast<ssize_t>(Begin().size()));
        EXPECT_GT(Receive(fds[0]), 0);
        close(fds[0]);
        close(fds[1]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(told_, ::testing::IsEmpty());
}

}  // namespace
}  // namespace gradwire::server

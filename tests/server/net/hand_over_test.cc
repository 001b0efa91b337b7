#include "server/net/hand_over.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <utility>

#include "base/sync.h"
#include "tests/testing/ranks.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::Eventually;

struct Ends {
  UniqueFd ours;
  UniqueFd theirs;
};

Ends MakePair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {.ours = UniqueFd(fds[0]), .theirs = UniqueFd(fds[1])};
}

TEST(HandOverTest, OneThatTakesLongDoesNotKeepOthersWaiting) {
  std::atomic<bool> release = false;
  std::atomic<int> given = 0;
  HandOver hand_over([&](const HandOver::Connection& connection) {
    EXPECT_TRUE(connection.fd.valid());
    if (connection.listener_fd == 1) release.wait(false);
    ++given;
  });
  for (int i = 1; i <= 20; ++i) {
    hand_over.Add({.listener_fd = i, .slot = {}, .fd = MakePair().ours});
  }
  EXPECT_TRUE(Eventually([&] { return given == 19; }));
  release = true;
  release.notify_all();
  EXPECT_TRUE(Eventually([&] { return given == 20; }));
}

TEST(HandOverTest, StopClosesWhatWaits) {
  std::atomic<bool> release = false;
  std::atomic<int> begun = 0;
  HandOver hand_over([&](const HandOver::Connection& /*connection*/) {
    ++begun;
    release.wait(false);
  });
  constexpr int kMore = 64;  // than there are threads
  std::vector<Ends> pairs;
  for (int i = 0; i < kMore; ++i) {
    pairs.push_back(MakePair());
    hand_over.Add({.listener_fd = i, .slot = {}, .fd = std::move(pairs.back().ours)});
  }
  ASSERT_TRUE(Eventually([&] { return begun > 0; }));
  std::thread stopper([&] { hand_over.Stop(); });
  char byte = 0;
  EXPECT_EQ(recv(pairs.back().theirs.get(), &byte, 1, 0), 0);
  release = true;
  release.notify_all();
  stopper.join();
  EXPECT_LT(begun, kMore);
}

}  // namespace
}  // namespace gradwire::server

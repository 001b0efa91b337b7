// What a member does with a daemon that takes its first segment and then does not answer.
#include "client/transport/shared_memory.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/wire/memory_offer.h"
#include "tests/testing/memory_offers.h"
#include "tests/testing/process.h"

namespace gradwire::client {
namespace {

constexpr std::size_t kBlock = std::size_t{16} << 10;
constexpr int kWaitMs = 10'000;

// Answers the first offer; holds the others' connections without an answer.
class SilentDaemon {
 public:
  SilentDaemon() : listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    std::memcpy(where.sun_path, path_.c_str(), path_.size() + 1);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
    thread_ = std::thread([this] { Serve(); });
  }
  ~SilentDaemon() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  std::string address() const { return "unix:" + path_; }
  int offers() const { return offers_; }

 private:
  void Serve() {
    std::vector<UniqueFd> held;
    while (true) {
      UniqueFd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection.valid()) return;
      pollfd ready{.fd = connection.get(), .events = POLLIN, .revents = 0};
      if (poll(&ready, 1, kWaitMs) != 1) continue;
      if (++offers_ == 1) {
        EXPECT_TRUE(wire::ReceiveMemoryRequest(connection.get()).ok());
        const wire::MemoryReply reply{
            .attachment = 1, .segment = 0, .results = ::gradwire::testing::SealedFd(kBlock)};
        EXPECT_TRUE(wire::SendMemoryReply(connection.get(), reply).ok());
      }
      held.push_back(std::move(connection));
    }
  }

  ::gradwire::testing::TemporaryFolder folder_;
  const std::string path_ = folder_ / "silent.sock";
  UniqueFd listener_;
  std::atomic<int> offers_ = 0;
  std::thread thread_;
};

// A second for each of a model's buckets would be silence enough to be declared lost.
TEST(SharedMemoryTest, ADaemonThatDoesNotAnswerIsAskedOnceForAllBuckets) {
  SilentDaemon daemon;
  auto memory = SharedMemory::Attach({.address = daemon.address(),
                                      .token = "token",
                                      .start_id = 1,
                                      .block_bytes = kBlock,
                                      .staging_bytes = 4 * kBlock},
                                     Clock::now() + std::chrono::milliseconds(kWaitMs));
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto gradients = std::make_shared<GradientMemory>();
  std::vector<std::shared_ptr<std::byte>> buckets;
  for (int i = 0; i < 4; ++i) buckets.push_back(gradients->Allocate(kBlock));
  for (const auto& bucket : buckets) {
    EXPECT_FALSE((*memory)->Has({bucket.get(), kBlock}, *gradients));
  }
  EXPECT_EQ(daemon.offers(), 2);  // the first segment, and one of the buckets
}

}  // namespace
}  // namespace gradwire::client

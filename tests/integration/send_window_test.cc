// A member behind a slow link sends fewer chunks ahead than the session allows.
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/integration/fake_daemon.h"
#include "tests/testing/gradients.h"

namespace gradwire::client {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Le;

constexpr std::uint64_t kChunkBytes = 4096;
constexpr std::size_t kChunks = 40;
constexpr std::uint32_t kWindow = 16;

TEST(SendWindow, ShrinksWhereChunksWait) {
  testing::Gradients gradients({testing::MakeParameter("w", kChunks * kChunkBytes / 4)});
  FakeDaemon daemon;
  daemon.join_response.set_chunk_bytes(kChunkBytes);
  daemon.join_response.set_window_chunks(kWindow);
  std::unique_ptr<Client> client;
  // With each result, how many chunks have been sent beyond those before it. A result every 40 ms,
  // or later, is what a link of that rate gives: in 150 ms come 3.
  std::vector<std::uint64_t> ahead;
  daemon.tamper = [&](v1::Frame& frame) {
    if (!frame.header().has_result()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    ahead.push_back(client->metrics().bytes_sent / kChunkBytes - frame.header().result().chunk());
  };
  auto joined = Client::Join({.address = daemon.address(),
                              .session = "slow",
                              .rank = 0,
                              .world_size = 1,
                              .parameters = gradients.parameters(),
                              .connect_timeout = absl::Seconds(5),
                              .join_timeout = absl::Seconds(5)});
  ASSERT_TRUE(joined.ok()) << joined.status();
  client = *std::move(joined);
  gradients.Fill(0, 0);
  GradBucket bucket = gradients.Bucket();
  const absl::Status reduced = client->AllReduce(bucket).Wait();
  ASSERT_TRUE(reduced.ok()) << reduced;
  ASSERT_EQ(ahead.size(), kChunks);
  EXPECT_EQ(ahead.front(), kWindow);
  // Until the first chunk that filled the window is back, and what was sent by then is through.
  const std::vector<std::uint64_t> later(ahead.begin() + 2 * kWindow, ahead.end() - 2);
  EXPECT_THAT(later, Each(AllOf(Ge(2U), Le(5U))));
  EXPECT_TRUE(client->EndStep().ok());
  EXPECT_TRUE(client->Leave().ok());
}

}  // namespace
}  // namespace gradwire::client

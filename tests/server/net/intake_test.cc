#include "server/net/intake.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/daemon/server.h"

namespace gradwire::server {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr IntakeLimits kLimits = {.connection_bytes = 100, .strangers_bytes = 250};

std::vector<std::pair<std::size_t, CutReason>> CutsOf(const std::vector<Held>& held) {
  std::vector<std::pair<std::size_t, CutReason>> pairs;
  for (const Cut& cut : ChooseCuts(held, kLimits)) pairs.emplace_back(cut.index, cut.reason);
  return pairs;
}

TEST(ChooseCutsTest, AConnectionHasALimitMembersToo) {
  EXPECT_THAT(CutsOf({{.bytes = 100}, {.bytes = 100, .member = true}}), IsEmpty());
  EXPECT_THAT(CutsOf({{.bytes = 101}, {.bytes = 1}, {.bytes = 101, .member = true}}),
              ElementsAre(std::pair(0, CutReason::kTooMuch), std::pair(2, CutReason::kTooMuch)));
}

TEST(ChooseCutsTest, TheLargestStrangersGoUntilTheRestFits) {
  EXPECT_THAT(CutsOf({{.bytes = 90}, {.bytes = 80}, {.bytes = 80}}), IsEmpty());
  EXPECT_THAT(CutsOf({{.bytes = 5}, {.bytes = 90}, {.bytes = 100}, {.bytes = 95}, {.bytes = 60}}),
              ElementsAre(std::pair(2, CutReason::kTooManyPeers)));
  EXPECT_THAT(
      CutsOf({{.bytes = 90}, {.bytes = 91}, {.bytes = 92}, {.bytes = 93}, {.bytes = 94}}),
      ElementsAre(std::pair(4, CutReason::kTooManyPeers), std::pair(3, CutReason::kTooManyPeers),
                  std::pair(2, CutReason::kTooManyPeers)));
  // One that is cut for itself does not count for the others.
  EXPECT_THAT(CutsOf({{.bytes = 1000}, {.bytes = 90}, {.bytes = 90}}),
              ElementsAre(std::pair(0, CutReason::kTooMuch)));
}

TEST(ChooseCutsTest, MembersAreNotPartOfTheStrangersShare) {
  EXPECT_THAT(CutsOf({{.bytes = 100, .member = true},
                      {.bytes = 100, .member = true},
                      {.bytes = 100, .member = true},
                      {.bytes = 100}}),
              IsEmpty());
}

TEST(ChooseCutsTest, AStrangerMustCompleteItsMessage) {
  EXPECT_THAT(CutsOf({{.bytes = 1, .since = seconds(30)},
                      {.bytes = 1, .since = seconds(31)},
                      {.bytes = 0, .since = seconds(3600)},
                      {.bytes = 1, .member = true, .since = seconds(31)}}),
              ElementsAre(std::pair(1, CutReason::kTooSlow)));
}

// With random traffic: what is really held, at most the allowance less.
TEST(HeldBytesTest, FollowsWhatIsHeld) {
  constexpr std::size_t kAllowance = std::size_t{64} << 10;
  std::mt19937_64 random(7);
  for (int run = 0; run < 200; ++run) {
    HeldBytes held;
    std::uint64_t read = 0;
    std::uint64_t explained = 0;
    for (int i = 0; i < 100; ++i) {
      const std::uint64_t message = random() % 2'000'000;
      read += message + message / 200;
      explained += message + message / 32 + 128;
      EXPECT_EQ(held.Update(read, explained), 0U);
      const std::uint64_t incomplete = random() % 8'000'000;
      const std::size_t bytes = held.Update(read + incomplete, explained);
      EXPECT_LE(bytes, incomplete);
      EXPECT_GE(bytes + kAllowance, incomplete);
    }
  }
}

TEST(HeldBytesTest, CreditCannotBeSaved) {
  HeldBytes held;
  EXPECT_EQ(held.Update(1000, 1'000'000'000), 0U);
  EXPECT_EQ(held.Update(1000 + (1 << 20), 1'000'000'000), (1U << 20) - (64U << 10));
}

std::size_t PeakResident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
  }
  return 0;
}

// A message that takes no memory here: it is one piece, many times.
grpc::ByteBuffer Large(std::size_t mebibytes) {
  const grpc::Slice piece(std::string(std::size_t{1} << 20, 'x'));
  const std::vector<grpc::Slice> pieces(mebibytes, piece);
  return {pieces.data(), pieces.size()};
}

std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

std::unique_ptr<Server> StartOnTcp() {
  auto server = Server::Start({.listen = {"127.0.0.1:0"}, .memory_limit = "256MiB"});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

grpc::Status SendLarge(const std::string& address, std::size_t mebibytes) {
  grpc::GenericStub stub(OwnChannel(address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(&context, "/gradwire.v1.AggregationService/Join",
                                          Large(mebibytes), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status;
}

TEST(IntakeTest, ADeclaredMessageOf512MebibytesIsCut) {
  const std::unique_ptr<Server> daemon = StartOnTcp();
  const std::size_t before = PeakResident();
  const grpc::Status status = SendLarge(daemon->addresses().front(), 512);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(PeakResident() - before, std::size_t{128} << 20);
#else
  static_cast<void>(before);
#endif
}

TEST(IntakeTest, ManySuchPeersHoldNotMuchMore) {
  const std::unique_ptr<Server> daemon = StartOnTcp();
  const std::size_t before = PeakResident();
  std::vector<std::thread> peers;
  std::atomic<int> cut = 0;
  for (int i = 0; i < 16; ++i) {
    peers.emplace_back([&] {
      for (int times = 0; times < 3; ++times) {
        const grpc::Status status = SendLarge(daemon->addresses().front(), 64);
        if (status.error_code() == grpc::StatusCode::UNAVAILABLE) ++cut;
      }
    });
  }
  for (std::thread& peer : peers) peer.join();
  // Mostly all of them; on a busy machine a check may come late for one.
  EXPECT_GT(cut, 24);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // Without the cuts it is a GiB.
  EXPECT_LT(PeakResident() - before, std::size_t{512} << 20);
#else
  static_cast<void>(before);
#endif
}

// The daemon refuses what is just too large as it always did, and without a cut.
TEST(IntakeTest, AMessageThatIsALittleTooLargeIsRefusedByItsSize) {
  const std::unique_ptr<Server> daemon = StartOnTcp();
  EXPECT_EQ(SendLarge(daemon->addresses().front(), 2).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace gradwire::server

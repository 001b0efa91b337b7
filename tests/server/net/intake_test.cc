#include "server/net/intake.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "server/daemon/server.h"

namespace gradwire::server {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;

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

TEST(ChooseCutsTest, AStrangersBytesBelongToACall) {
  using std::chrono::milliseconds;
  EXPECT_THAT(CutsOf({{.bytes = 1, .without_call = milliseconds(20)},
                      {.bytes = 1, .without_call = milliseconds(21)},
                      {.bytes = 0, .without_call = seconds(60)},
                      {.bytes = 1, .member = true, .without_call = seconds(60)}}),
              ElementsAre(std::pair(1, CutReason::kNoCall)));
}

TEST(ChooseCutsTest, CallsHaveARateMembersToo) {
  EXPECT_THAT(
      CutsOf({{.calls_too_often = true}, {}, {.member = true, .calls_too_often = true}}),
      ElementsAre(std::pair(0, CutReason::kTooManyCalls), std::pair(2, CutReason::kTooManyCalls)));
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
  // gRPC takes a call that is cut in its first write for one that was never sent, and would try
  // again for as long as the daemon refuses this address.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// One frame of HTTP/2.
std::string Frame(std::size_t type, std::size_t flags, std::uint32_t stream,
                  const std::string& payload) {
  std::string frame;
  for (const std::size_t byte : {payload.size() >> 16, payload.size() >> 8, payload.size(), type,
                                 flags, std::size_t{stream} >> 24, std::size_t{stream} >> 16,
                                 std::size_t{stream} >> 8, std::size_t{stream}}) {
    frame.push_back(static_cast<char>(byte & 0xff));
  }
  return frame + payload;
}

// The headers of a gRPC call, as literals of HPACK.
std::string CallHeaders() {
  std::string block;
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {":method", "POST"},
           {":scheme", "http"},
           {":path", "/gradwire.v1.AggregationService/Join"},
           {":authority", "test"},
           {"te", "trailers"},
           {"content-type", "application/grpc"}}) {
    block.push_back('\0');
    block.push_back(static_cast<char>(name.size()));
    block += name;
    block.push_back(static_cast<char>(value.size()));
    block += value;
  }
  return block;
}

// To "127.0.0.1:port"; invalid without one.
UniqueFd ConnectTcp(const std::string& address) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) fd.Reset();
  return fd;
}

// False: the connection has ended.
bool SendAll(int fd, const std::string& bytes) {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t more = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (more <= 0) return false;
    sent += static_cast<std::size_t>(more);
  }
  return true;
}

// Begins calls and resets them at once, until the connection is cut. How many it managed.
std::size_t ResetCalls(const std::string& address, std::size_t most) {
  const UniqueFd connected = ConnectTcp(address);
  EXPECT_TRUE(connected.valid());
  SendAll(connected.get(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, 0, ""));
  const std::string headers = CallHeaders();
  std::uint32_t stream = 1;
  for (std::size_t calls = 0; calls < most; calls += 100) {
    std::string batch;
    for (int i = 0; i < 100; ++i, stream += 2) {
      batch += Frame(1, 4, stream, headers) + Frame(3, 0, stream, std::string("\0\0\0\x8", 4));
    }
    if (!SendAll(connected.get(), batch)) return calls;
  }
  return most;
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

// Both ends of a TCP connection on this host.
struct Pair {
  UniqueFd ours;
  UniqueFd theirs;
  std::string peer;  // as gRPC names it
};

Pair ConnectToOurselves() {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener.get(), generic, size), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), generic, &size), 0);
  Pair pair;
  pair.theirs = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(pair.theirs.get(), generic, size), 0);
  pair.ours = UniqueFd(accept4(listener.get(), generic, &size, SOCK_CLOEXEC));
  EXPECT_TRUE(pair.ours.valid());
  pair.peer = absl::StrCat("ipv4:127.0.0.1:", ntohs(address.sin_port));
  return pair;
}

TEST(IntakeTest, AnAddressHasOnlySoManyNewcomers) {
  Intake intake(
      {.connection_bytes = 1 << 20, .strangers_bytes = 1 << 20, .newcomers = 2},
      [](CutReason, const std::string& /*peer*/, const std::string& why) { ADD_FAILURE() << why; },
      [] { return std::chrono::nanoseconds(0); });
  std::array<Pair, 3> pairs = {ConnectToOurselves(), ConnectToOurselves(), ConnectToOurselves()};
  auto now = Intake::Clock::now();
  const PeerAddress here = *PeerOf(pairs[0].ours.get());
  const PeerAddress elsewhere = *ParsePeer("ipv4:192.0.2.7:1");
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(intake.Admit(here, now));
    intake.Add(pairs.at(static_cast<std::size_t>(i)).ours.get());
  }
  EXPECT_FALSE(intake.Admit(here, now));
  EXPECT_TRUE(intake.Admit(elsewhere, now));
  // A message makes room for another, and so does an end.
  intake.Find(pairs[0].peer)->OnTaken(100);
  EXPECT_FALSE(intake.Admit(here, now));
  now += std::chrono::seconds(1);
  intake.Check(now);
  ASSERT_TRUE(intake.Admit(here, now));
  intake.Add(pairs[2].ours.get());
  EXPECT_FALSE(intake.Admit(here, now));
  intake.Find(pairs[0].peer)->OnCall();
  EXPECT_TRUE(intake.Remove(pairs[0].ours.get()));
  EXPECT_FALSE(intake.Admit(here, now));
  // It ends without a call.
  EXPECT_FALSE(intake.Remove(pairs[1].ours.get()));
  EXPECT_TRUE(intake.Admit(here, now));
}

// A stranger that brought bytes and no call, while this process waits for a processor a part of the
// time. After how long it is cut.
std::chrono::milliseconds CutAfter(double part_waited) {
  using std::chrono::milliseconds;
  bool cut = false;
  auto now = Intake::Clock::now();
  auto asked = now - std::chrono::hours(1);
  Intake intake(
      {.connection_bytes = 1 << 20, .strangers_bytes = 1 << 20},
      [&](CutReason reason, const std::string& /*peer*/, const std::string& /*sentence*/) {
        EXPECT_EQ(reason, CutReason::kNoCall);
        cut = true;
      },
      [&] {
        const std::chrono::duration<double, std::nano> since = now - std::exchange(asked, now);
        return std::chrono::nanoseconds(std::llround(since.count() * part_waited));
      });
  const Pair pair = ConnectToOurselves();
  intake.Add(pair.ours.get());
  // Checks have an interval of the real clock, which stays behind `now`.
  intake.Check(now += std::chrono::hours(1));
  const std::string bytes(std::size_t{128} << 10, 'x');
  std::string read(bytes.size(), '\0');
  std::thread sender([&] { EXPECT_TRUE(SendAll(pair.theirs.get(), bytes)); });
  EXPECT_EQ(recv(pair.ours.get(), read.data(), read.size(), MSG_WAITALL),
            static_cast<ssize_t>(read.size()));
  sender.join();
  const auto begin = now;
  while (!cut && now < begin + seconds(1)) intake.Check(now += milliseconds(1));
  return std::chrono::duration_cast<milliseconds>(now - begin);
}

// Nor does an hour count that this process waited before.
TEST(IntakeTest, TimeWithoutAProcessorDoesNotCountAgainstAStranger) {
  EXPECT_EQ(CutAfter(0).count(), 21);
  EXPECT_THAT(CutAfter(0.5).count(), AllOf(Ge(35), Le(45)));
  EXPECT_EQ(CutAfter(1).count(), 201) << "at the latest";
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

TEST(IntakeTest, CallsThatAreResetAtOnceAreCut) {
  const std::unique_ptr<Server> daemon = StartOnTcp();
  constexpr std::size_t kMost = 1'000'000;
  EXPECT_LT(ResetCalls(daemon->addresses().front(), kMost), kMost / 10);
  // The address gets another connection after a pause.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  grpc::StatusCode code = grpc::StatusCode::OK;
  while (code != grpc::StatusCode::RESOURCE_EXHAUSTED && absl::Now() < deadline) {
    code = SendLarge(daemon->addresses().front(), 2).error_code();
  }
  EXPECT_EQ(code, grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// The daemon refuses what is just too large as it always did, and without a cut.
TEST(IntakeTest, AMessageThatIsALittleTooLargeIsRefusedByItsSize) {
  const std::unique_ptr<Server> daemon = StartOnTcp();
  EXPECT_EQ(SendLarge(daemon->addresses().front(), 2).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace gradwire::server

#include "server/net/frame_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>

#include "tests/testing/http2_frames.h"

namespace gradwire::server {
namespace {

using namespace gradwire::testing::http2;  // NOLINT(google-build-using-namespace): frames
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsNull;

constexpr char kPath[] = "/gradwire.v1.AggregationService/Join";

// A client that has sent the beginning.
class Peer {
 public:
  explicit Peer(std::size_t most_held = 1 << 20) : guard_(most_held) { Send(Begin()); }

  const char* Send(const std::string& bytes) {
    return guard_.Look({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, now_);
  }
  // How many times it may be sent, up to `most`.
  int Times(const std::string& bytes, int most) {
    for (int i = 0; i < most; ++i) {
      if (Send(bytes) != nullptr) return i;
    }
    return most;
  }
  void Wait(seconds time) { now_ += time; }

 private:
  FrameGuard guard_;
  FrameGuard::Clock::time_point now_ = FrameGuard::Clock::now();
};

std::string Prefix(std::uint32_t size) {
  return {'\0', static_cast<char>(size >> 24), static_cast<char>(size >> 16 & 0xff),
          static_cast<char>(size >> 8 & 0xff), static_cast<char>(size & 0xff)};
}

std::string Call(std::uint32_t stream, std::size_t size) {
  return Frame(kHeaders, kEndHeaders, stream, CallHeaders(kPath)) +
         Frame(kData, kEndStream, stream,
               Prefix(static_cast<std::uint32_t>(size)) + std::string(size, 'x'));
}

TEST(FrameGuardTest, CallsPassHoweverTheyAreCut) {
  std::string all = Begin() + Frame(kSettings, kAck, 0, "");
  const std::string token = Literal("authorization", std::string(3000, 't'), true);
  for (std::uint32_t i = 0; i < 200; ++i) {
    // As clients do: the first call stores the header, the others refer to it.
    const std::string headers = CallHeaders(kPath) + (i == 0 ? token : "\xbe");
    all += Frame(kHeaders, 0, 2 * i + 1, headers.substr(0, 40));
    all += Frame(kContinuation, kEndHeaders, 2 * i + 1, headers.substr(40));
    const std::string message = Prefix(20'000) + std::string(20'000, 'x');
    all += Frame(kData, 0, 2 * i + 1, message.substr(0, 3)) +
           Frame(kData, 0, 2 * i + 1, message.substr(3, 16'000)) +
           Frame(kData, kEndStream, 2 * i + 1, message.substr(16'003));
    all += Frame(kPing, kAck, 0, "12345678") + Frame(kWindowUpdate, 0, 0, {0, 0, 1, 0});
    if (i % 10 == 0) all += Frame(kPing, 0, 0, "12345678");
  }
  std::mt19937 random(3);
  for (const std::size_t most : {std::size_t{1}, std::size_t{100}, std::size_t{50'000}}) {
    FrameGuard guard(4 << 20);
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t size = std::min(all.size() - at, 1 + random() % most);
      ASSERT_THAT(guard.Look({reinterpret_cast<const std::uint8_t*>(all.data()) + at, size}, {}),
                  IsNull());
      at += size;
    }
  }
}

TEST(FrameGuardTest, AByteThatRefersToALargeHeaderCountsAsTheHeader) {
  Peer peer;
  EXPECT_THAT(peer.Send(Frame(kHeaders, 0, 1,
                              CallHeaders(kPath) + Literal(std::string(3900, 'k'), "v", true))),
              IsNull());
  const int times = peer.Times(Frame(kContinuation, 0, 1, "\xbe\xbe"), 1000);
  EXPECT_GT(times, 5);
  EXPECT_LT(times, 20);
  EXPECT_THAT(peer.Send(""), HasSubstr("headers of more than 128 KiB"));
}

TEST(FrameGuardTest, BlocksOfHeadersHaveASizeHoweverTheyAreWritten) {
  for (const std::string& bytes :
       {std::string(), std::string("\x8f"), Literal("a", "b"), std::string("\x3f\xe1\x1f")}) {
    Peer peer;
    EXPECT_THAT(peer.Send(Frame(kHeaders, 0, 1, CallHeaders(kPath))), IsNull());
    EXPECT_LT(peer.Times(Frame(kContinuation, 0, 1, bytes), 2000), 1100) << bytes;
  }
  Peer peer;
  EXPECT_THAT(peer.Send(Frame(kHeaders, 0, 1, std::string("\0\1a\x7f\xff\xff\x7f", 7))),
              HasSubstr("128 KiB"));
}

TEST(FrameGuardTest, HeadersOfAllStreamsTogetherHaveARate) {
  Peer peer;
  EXPECT_THAT(peer.Send(Frame(kSettings, kAck, 0, "")), IsNull());
  std::uint32_t stream = 1;
  const std::string block = CallHeaders(kPath) + Literal("a", std::string(16'000, 'b'));
  int sent = 0;
  while (peer.Send(Frame(kHeaders, kEndHeaders | kEndStream, stream, block)) == nullptr) {
    stream += 2;
    ASSERT_LT(++sent, 2000);
  }
  EXPECT_GT(sent, 800);
}

TEST(FrameGuardTest, PingsAndEmptyFramesHaveARate) {
  for (const std::string& frame :
       {Frame(kPing, 0, 0, "12345678"), Frame(kSettings, 0, 0, ""),
        Frame(kPriority, 0, 1, std::string(5, '\0')), Frame(kData, 0, 1, ""),
        Frame(kRstStream, 0, 1, std::string(4, '\0'))}) {
    Peer peer;
    EXPECT_EQ(peer.Times(frame, 900), 900);
    peer.Wait(seconds(5));
    EXPECT_EQ(peer.Times(frame, 900), 900);
    EXPECT_LT(peer.Times(frame, 900), 900);
  }
  Peer peer;
  EXPECT_LT(peer.Times(Frame(kWindowUpdate, 0, 0, {0, 0, 0, 1}), 300'000), 300'000);
}

TEST(FrameGuardTest, NewStreamsHaveARate) {
  Peer peer;
  EXPECT_THAT(peer.Send(Frame(kSettings, kAck, 0, "")), IsNull());
  std::uint32_t stream = 1;
  int calls = 0;
  for (; peer.Send(Call(stream, 1)) == nullptr; ++calls) stream += 2;
  EXPECT_EQ(calls, 4000);
}

// Until then gRPC does not limit concurrent streams.
TEST(FrameGuardTest, ThePeerMustAcknowledgeTheSettings) {
  Peer peer;
  std::uint32_t stream = 1;
  int calls = 0;
  for (; peer.Send(Call(stream, 1)) == nullptr; ++calls) stream += 2;
  EXPECT_EQ(calls, 64);
}

TEST(FrameGuardTest, IncompleteMessagesOfAllStreamsTogetherHaveALimit) {
  Peer peer(1'000'000);
  const std::string part(16'000, 'x');
  int sent = 0;
  for (std::uint32_t stream = 1; stream < 16; stream += 2) {
    EXPECT_THAT(peer.Send(Frame(kHeaders, kEndHeaders, stream, CallHeaders(kPath)) +
                          Frame(kData, 0, stream, Prefix(1U << 29))),
                IsNull());
  }
  while (peer.Send(Frame(kData, 0, static_cast<std::uint32_t>(2 * (sent % 8) + 1), part)) ==
         nullptr) {
    ASSERT_LT(++sent, 100);
  }
  EXPECT_GT(sent, 55);
  EXPECT_THAT(peer.Send(""), HasSubstr("incomplete messages"));
}

// Each frame costs more than the byte that it carries.
TEST(FrameGuardTest, AMessageInSmallPiecesCountsMore) {
  Peer peer(1'000'000);
  EXPECT_THAT(peer.Send(Frame(kData, 0, 1, Prefix(900'000))), IsNull());
  EXPECT_LT(peer.Times(Frame(kData, 0, 1, "x"), 900'000), 20'000);
}

TEST(FrameGuardTest, StreamsThatEndAndCompleteMessagesHoldNothing) {
  Peer peer(1'000'000);
  EXPECT_THAT(peer.Send(Frame(kSettings, kAck, 0, "")), IsNull());
  std::uint32_t stream = 1;
  for (int i = 0; i < 50; ++i, stream += 4) {
    EXPECT_THAT(peer.Send(Call(stream, 100'000)), IsNull());
    EXPECT_THAT(peer.Send(Frame(kData, 0, stream + 2, Prefix(500'000) + std::string(400'000, 'x')) +
                          Frame(kRstStream, 0, stream + 2, std::string(4, '\0'))),
                IsNull());
  }
  // The daemon ended these streams, and the client said no more on them.
  for (int i = 0; i < 10; ++i, stream += 2) {
    EXPECT_THAT(peer.Send(Frame(kData, 0, stream, Prefix(500'000) + std::string(400'000, 'x'))),
                IsNull());
    peer.Wait(seconds(61));
  }
}

TEST(FrameGuardTest, AnotherProtocolIsLeftToGrpc) {
  FrameGuard guard(1);
  const std::string text = "GET / HTTP/1.1\r\n\r\n" + std::string(100'000, 'x');
  EXPECT_THAT(guard.Look({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, {}),
              IsNull());
}

// Whatever comes, in whatever pieces: no crash, and the same answer.
TEST(FrameGuardTest, RandomBytesAreJudgedAlikeInAllPieces) {
  std::mt19937 random(11);
  for (int run = 0; run < 2000; ++run) {
    std::string bytes = Begin();
    for (int i = 0; i < 30; ++i) {
      std::string payload(random() % 200, '\0');
      for (char& c : payload) c = static_cast<char>(random());
      bytes += Frame(static_cast<Type>(random() % 11), static_cast<int>(random() % 64),
                     random() % 8, payload);
    }
    const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
    FrameGuard whole(50'000);
    FrameGuard pieces(50'000);
    const char* const at_once = whole.Look({data, bytes.size()}, {});
    const char* in_pieces = nullptr;
    for (std::size_t i = 0; i < bytes.size(); ++i) in_pieces = pieces.Look({data + i, 1}, {});
    EXPECT_EQ(at_once == nullptr, in_pieces == nullptr);
  }
}

}  // namespace
}  // namespace gradwire::server

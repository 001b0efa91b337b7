#include "client/runtime/send_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace gradwire::client {
namespace {

using std::chrono::milliseconds;

// A member with one round of many chunks on a link that carries `per_chunk` after `round_trip`: a
// chunk waits for those before it.
class Link {
 public:
  Link(std::uint32_t most, milliseconds round_trip, milliseconds per_chunk,
       std::shared_ptr<SendWindow> window = std::make_shared<SendWindow>())
      : times_(std::move(window), most), round_trip_(round_trip), per_chunk_(per_chunk) {}

  // Sends what the window allows and takes the next result; returns how long its chunk took.
  milliseconds Step() {
    while (sent_ < received_ + chunks()) Send();
    return Take();
  }

  void Send() {
    times_.Sent({.id = id_, .chunk = sent_++, .received = received_}, now_);
    free_ = std::max(free_, now_) + per_chunk_;
    on_their_way_.push_back({now_, free_ + round_trip_});
  }

  milliseconds Take() {
    const Chunk chunk = on_their_way_.front();
    on_their_way_.pop_front();
    now_ = std::max(now_, chunk.back);
    times_.Received({.id = id_, .chunk = received_++}, now_);
    return std::chrono::duration_cast<milliseconds>(now_ - chunk.sent);
  }

  // Another round, some time after all results of this one.
  void NextRound() {
    while (!on_their_way_.empty()) Take();
    now_ += milliseconds(500);
    ++id_.round;
    sent_ = received_ = 0;
  }

  void SetRoundTrip(milliseconds round_trip) { round_trip_ = round_trip; }
  void SetPerChunk(milliseconds per_chunk) { per_chunk_ = per_chunk; }
  std::uint32_t chunks() const { return times_.chunks(); }

 private:
  struct Chunk {
    SendWindow::TimePoint sent;
    SendWindow::TimePoint back;
  };

  ChunkTimes times_;
  milliseconds round_trip_;
  milliseconds per_chunk_;
  SendWindow::TimePoint now_;
  SendWindow::TimePoint free_;  // the link
  std::deque<Chunk> on_their_way_;
  wire::RoundId id_;
  std::uint32_t sent_ = 0;
  std::uint32_t received_ = 0;
};

TEST(SendWindowTest, StaysOnFastLinks) {
  Link link(16, milliseconds(1), milliseconds(2));
  for (int i = 0; i < 1000; ++i) {
    link.Step();
    ASSERT_EQ(link.chunks(), 16U) << i;
  }
}

// 16 chunks fill half of the round trip, and wait for each other at the beginning only.
TEST(SendWindowTest, StaysOnLongLinks) {
  Link link(16, milliseconds(300), milliseconds(9));
  for (int i = 0; i < 1000; ++i) {
    link.Step();
    ASSERT_EQ(link.chunks(), 16U) << i;
  }
}

TEST(SendWindowTest, KeepsQueuesOfSlowLinksShort) {
  Link link(16, milliseconds(1), milliseconds(30));
  EXPECT_EQ(link.Step(), milliseconds(31));
  for (int i = 0; i < 40; ++i) link.Step();  // what was sent before anything was known
  for (int i = 0; i < 200; ++i) {
    // The least time has one chunk's 30 ms in it.
    ASSERT_LE(link.Step(), SendWindow::kTarget + 2 * milliseconds(30)) << i;
    ASSERT_GE(link.chunks(), 5U) << i;
    ASSERT_LE(link.chunks(), 6U) << i;
  }
  link.NextRound();
  EXPECT_LE(link.chunks(), 6U);
}

// With another window the shard of the other connection would fall behind.
TEST(SendWindowTest, IsTheSameForAllConnections) {
  const auto window = std::make_shared<SendWindow>();
  Link slow(16, milliseconds(1), milliseconds(30), window);
  const Link other(16, milliseconds(1), milliseconds(1), window);
  const Link allows_less(3, milliseconds(1), milliseconds(1), window);
  for (int i = 0; i < 40; ++i) slow.Step();
  EXPECT_EQ(other.chunks(), slow.chunks());
  EXPECT_EQ(allows_less.chunks(), 3U);
}

TEST(SendWindowTest, GrowsAgainWithTheLink) {
  Link link(16, milliseconds(1), milliseconds(30));
  for (int i = 0; i < 40; ++i) link.Step();
  ASSERT_LE(link.chunks(), 6U);
  link.SetPerChunk(milliseconds(2));
  for (int i = 0; i < 400; ++i) link.Step();
  EXPECT_EQ(link.chunks(), 16U);
}

TEST(SendWindowTest, KeepsTwoChunksOnTheSlowestLinks) {
  Link link(16, milliseconds(1), milliseconds(5000));
  for (int i = 0; i < 100; ++i) link.Step();
  EXPECT_EQ(link.chunks(), 2U);
  Link one(1, milliseconds(1), milliseconds(5000));
  for (int i = 0; i < 100; ++i) one.Step();
  EXPECT_EQ(one.chunks(), 1U);
}

// The first chunks of a round also wait for members that are not there yet.
TEST(SendWindowTest, IgnoresWaitsThatItDoesNotCause) {
  Link link(16, milliseconds(1), milliseconds(1));
  link.Send();
  link.NextRound();
  link.SetRoundTrip(milliseconds(5000));
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 3; ++i) link.Send();
    link.NextRound();
  }
  EXPECT_EQ(link.chunks(), 16U);
}

// A lost member is waited for.
TEST(SendWindowTest, OneLongWaitCountsLittle) {
  SendWindow window;
  for (int i = 0; i < 20; ++i) window.Add(milliseconds(16), 16);
  window.Add(std::chrono::hours(5), 16);
  EXPECT_GE(window.Chunks(16), 14U);
  for (int i = 0; i < 4; ++i) window.Add(milliseconds(16), 16);
  EXPECT_EQ(window.Chunks(16), 16U);
}

class OneChunkTest : public testing::Test {
 protected:
  static constexpr wire::RoundId kId{.step = 3, .attempt = 1, .bucket = 2, .round = 0};

  // A chunk that fills the window, sent at 1 ms, after one that took a millisecond.
  OneChunkTest() {
    times_.Sent({.id = kId, .chunk = 0, .received = 0}, At(0));
    times_.Received({.id = kId, .chunk = 0}, At(1));
    times_.Sent({.id = kId, .chunk = 16, .received = 1}, At(1));
  }

  static SendWindow::TimePoint At(int ms) { return SendWindow::TimePoint(milliseconds(ms)); }

  std::uint32_t ChunksAfter(const wire::RoundId& id, std::uint32_t chunk, int ms) {
    times_.Received({.id = id, .chunk = chunk}, At(ms));
    return times_.chunks();
  }

  std::shared_ptr<SendWindow> window_ = std::make_shared<SendWindow>();
  ChunkTimes times_{window_, 16};
};

TEST_F(OneChunkTest, CountsItsOwnResultOnly) {
  EXPECT_EQ(ChunksAfter(kId, 15, 400), 16U);
  EXPECT_EQ(ChunksAfter({.step = 3, .attempt = 0, .bucket = 1, .round = 4}, 99, 400), 16U);
  EXPECT_EQ(ChunksAfter(kId, 16, 400), 6U);  // of 16 chunks that wait for 400 ms
  EXPECT_EQ(ChunksAfter(kId, 16, 5000), 6U) << "repeated";
}

TEST_F(OneChunkTest, GivesUpWhatIsOvertaken) {
  const std::vector<std::pair<wire::RoundId, std::uint32_t>> later = {
      {kId, 17},
      {{.step = 3, .attempt = 1, .bucket = 2, .round = 1}, 0},
      {{.step = 3, .attempt = 2, .bucket = 2, .round = 0}, 0},
      {{.step = 4, .attempt = 0, .bucket = 0, .round = 0}, 0},
  };
  for (const auto& [id, chunk] : later) {
    ChunkTimes times = times_;
    times.Received({.id = id, .chunk = chunk}, At(400));
    times.Received({.id = kId, .chunk = 16}, At(500));
    EXPECT_EQ(times.chunks(), 16U) << chunk;
  }
}

// A round that begins again sends its chunks again; the time is of those.
TEST_F(OneChunkTest, MeasuresWhatIsSentAgain) {
  const wire::RoundId again{.step = 3, .attempt = 2, .bucket = 2, .round = 0};
  times_.Sent({.id = again, .chunk = 15, .received = 0}, At(1000));
  EXPECT_EQ(ChunksAfter(again, 15, 1400), 6U);
}

TEST_F(OneChunkTest, ForgetsWithTheStream) {
  times_.Reset();
  EXPECT_EQ(ChunksAfter(kId, 16, 5000), 16U);
}

TEST_F(OneChunkTest, TakesAnyNumbers) {
  EXPECT_EQ(ChunksAfter(kId, 17, 2), 16U);
  times_.Sent({.id = kId, .chunk = 3, .received = 9}, At(2));  // nothing is on its way
  EXPECT_EQ(ChunksAfter(kId, 3, 5000), 16U);
  times_.Sent({.id = kId, .chunk = 0xFFFFFFFF, .received = 1}, At(5000));
  EXPECT_EQ(ChunksAfter(kId, 0xFFFFFFFF, 10000), 16U);
}

// A route that has become longer looks like a queue, but not forever.
TEST_F(OneChunkTest, ForgetsOldTimes) {
  int now = 0;
  const auto measure = [&](int took) {
    const std::uint32_t last = times_.chunks() - 1;
    times_.Sent({.id = kId, .chunk = last, .received = 0}, At(now));
    times_.Received({.id = kId, .chunk = last}, At(now + took));
    now += took;
  };
  times_.Reset();
  measure(1);
  for (int i = 0; i < ChunkTimes::kMemory; ++i) measure(400);
  EXPECT_EQ(times_.chunks(), 2U);
  for (int i = 0; i < 2 * ChunkTimes::kMemory; ++i) measure(400);
  EXPECT_EQ(times_.chunks(), 16U);
}

}  // namespace
}  // namespace gradwire::client

#include "proto/wire/frame.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "proto/wire/codec.h"
#include "tests/proto/frame_samples.h"

namespace gradwire::wire {
namespace {

// Around the limits between XXH3's variants.
const std::size_t kSizes[] = {0, 1, 2, 16, 17, 128, 240, 241, 1024, 8191, 8192, 70'001};

TEST(DigestTest, EqualsOneShotXxh3OverAnySlices) {
  std::mt19937 random(1);
  for (const std::size_t size : kSizes) {
    const std::string content = Pattern(size);
    const std::uint64_t expected = XXH3_64bits(content.data(), content.size());
    EXPECT_EQ(Digest(MakePayload(content).get()), expected);
    for (int i = 0; i < 20; ++i) {
      std::vector<std::size_t> cuts(std::min<std::size_t>(size / 2000, 20));
      for (std::size_t& cut : cuts)
        cut = std::uniform_int_distribution<std::size_t>(0, size)(random);
      std::sort(cuts.begin(), cuts.end());
      const std::string bytes = EncodeWithProtobuf(SampleOf<Result>(), content);
      for (std::size_t& cut : cuts) cut += bytes.size() - size;
      const absl::StatusOr<Frame> frame = Parse(Cut(bytes, cuts), {});
      ASSERT_TRUE(frame.ok()) << frame.status();
      EXPECT_EQ(Digest(frame->payload.get()), expected);
    }
  }
}

TEST(DigestTest, NoPayload) { EXPECT_EQ(Digest(nullptr), XXH3_64bits("", 0)); }

// Chunks in order cover every segment from its first element to its last.
void ExpectCovers(const RoundPlan& plan, std::size_t chunk_bytes) {
  const ChunkLayout layout(plan, chunk_bytes);
  std::size_t segment = 0;
  std::size_t next = 0;
  std::size_t total = 0;
  const auto skip_finished = [&] {
    while (segment < plan.segments.size() && next == plan.segments[segment].numel) {
      ++segment;
      next = 0;
    }
  };
  for (std::uint32_t chunk = 0; chunk < layout.chunk_count(); ++chunk) {
    skip_finished();
    const ElementRange range = layout.Range(chunk);
    ASSERT_EQ(range.segment, segment);
    ASSERT_EQ(range.begin, next);
    ASSERT_GT(range.numel(), 0U);
    ASSERT_LE(range.end, plan.segments[segment].numel);
    EXPECT_EQ(layout.segment(chunk), plan.segments[segment]);
    const std::size_t bytes = layout.ChunkBytes(chunk);
    EXPECT_EQ(bytes, range.numel() * ByteSize(plan.segments[segment].dtype));
    EXPECT_TRUE(bytes == chunk_bytes || range.end == plan.segments[segment].numel);
    EXPECT_LE(bytes, chunk_bytes);
    next = range.end;
    total += bytes;
  }
  skip_finished();
  EXPECT_EQ(segment, plan.segments.size());
  EXPECT_EQ(total, plan.bytes());
}

TEST(ChunkLayoutTest, ChunksCoverEverySegment) {
  std::mt19937 random(2);
  const auto draw = [&](std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random);
  };
  for (int i = 0; i < 500; ++i) {
    RoundPlan plan;
    for (std::size_t s = draw(0, 5); s > 0; --s) {
      plan.segments.push_back({static_cast<DType>(draw(1, 4)), draw(0, 3) == 0 ? 0 : draw(1, 200)});
    }
    ExpectCovers(plan, 8 * draw(1, 30));
  }
}

TEST(ChunkLayoutTest, ExactMultiples) {
  const RoundPlan plan{{{DType::kFloat32, 8}, {DType::kFloat64, 5}, {DType::kFloat16, 0}}};
  const ChunkLayout layout(plan, 16);
  ASSERT_EQ(layout.chunk_count(), 5U);
  EXPECT_EQ(layout.Range(1).begin, 4U);
  EXPECT_EQ(layout.Range(2).segment, 1U);
  EXPECT_EQ(layout.ChunkBytes(4), 8U);
}

// The chunks of all parts, each of a layout of its own, have every element once.
TEST(ChunkLayoutTest, SlicesDivideEverySegment) {
  const RoundPlan plan{{{DType::kFloat32, 5000},
                        {DType::kFloat16, 0},
                        {DType::kFloat64, 7},
                        {DType::kBFloat16, 3000}}};
  for (const std::uint32_t parts : {1U, 2U, 3U, 4U, 64U}) {
    std::vector<std::vector<int>> covered;
    for (const Segment& segment : plan.segments) covered.emplace_back(segment.numel);
    std::size_t bytes = 0;
    for (std::uint32_t part = 0; part < parts; ++part) {
      const ChunkLayout layout(plan, 512, {.part = part, .parts = parts});
      std::size_t last_segment = 0;
      for (std::uint32_t chunk = 0; chunk < layout.chunk_count(); ++chunk) {
        const ElementRange range = layout.Range(chunk);
        ASSERT_GE(range.segment, last_segment);
        last_segment = range.segment;
        ASSERT_GT(range.numel(), 0U);
        ASSERT_LE(range.end, plan.segments[range.segment].numel);
        EXPECT_EQ(layout.segment(chunk), plan.segments[range.segment]);
        EXPECT_EQ(layout.UnitSegment(layout.UnitOf(chunk)).numel, range.numel());
        EXPECT_LE(layout.ChunkBytes(chunk), 512U);
        bytes += layout.ChunkBytes(chunk);
        for (std::size_t i = range.begin; i < range.end; ++i) ++covered[range.segment][i];
      }
    }
    EXPECT_EQ(bytes, plan.bytes()) << parts;
    for (const std::vector<int>& segment : covered) {
      EXPECT_EQ(std::count(segment.begin(), segment.end(), 1),
                static_cast<std::ptrdiff_t>(segment.size()))
          << parts;
    }
  }
}

// As both sides compute it for themselves.
TEST(ChunkLayoutTest, ASliceMayBeEmpty) {
  const RoundPlan plan{{{DType::kFloat32, 100}}};
  EXPECT_EQ(ChunkLayout(plan, 64, {.part = 0, .parts = 4}).chunk_count(), 0U);
  EXPECT_EQ(ChunkLayout(plan, 64, {.part = 3, .parts = 4}).chunk_count(), 7U);
}

TEST(ChunkLayoutTest, NothingToSend) {
  EXPECT_EQ(ChunkLayout().chunk_count(), 0U);
  EXPECT_EQ(ChunkLayout(RoundPlan{}, 8).chunk_count(), 0U);
  EXPECT_EQ(ChunkLayout(RoundPlan{{{DType::kFloat32, 0}}}, 8).chunk_count(), 0U);
}

}  // namespace
}  // namespace gradwire::wire

#include "proto/wire/merge.h"

#include "gtest/gtest.h"
#include "proto/wire/proto_conversion.h"

namespace gradwire::wire {
namespace {

constexpr RoundId kRound{.step = 3, .attempt = 1, .bucket = 7, .round = 0};

Contribution Raw(std::uint32_t chunk, std::uint64_t offset, std::uint64_t bytes) {
  return {.id = kRound,
          .generation = 5,
          .rank = 2,
          .chunk = chunk,
          .shared = SharedBytes{
              .segment = 1, .offset = offset, .bytes = bytes, .raw = true, .takes_result = true}};
}

Result InPlace(std::uint32_t chunk) {
  return {
      .id = kRound, .chunk = chunk, .digest = chunk, .reduce_nanoseconds = 10, .in_place = true};
}

// Whether the frames were joined; one that was not must have stayed as it was.
bool Joined(Header last, const Header& next) {
  const Header before = last;
  const bool merged = Merge(last, next);
  if (!merged) {
    EXPECT_EQ(last, before);
  }
  return merged;
}

TEST(Merge, AnAcknowledgementSaysWhatTheOneBeforeSaid) {
  Header last = Ack{.id = kRound, .received = 2};
  EXPECT_TRUE(Merge(last, Ack{.id = kRound, .received = 5}));
  EXPECT_EQ(std::get<Ack>(last).received, 5U);
  RoundId other = kRound;
  other.bucket = 8;
  EXPECT_FALSE(Joined(last, Ack{.id = other, .received = 6}));
}

TEST(Merge, RawChunksThatLieOneAfterTheOther) {
  Header last = Raw(4, 1000, 64);
  EXPECT_TRUE(Merge(last, Raw(5, 1064, 64)));
  Contribution third = Raw(6, 1128, 10);
  third.received = 3;
  EXPECT_TRUE(Merge(last, third));
  const auto& all = std::get<Contribution>(last);
  EXPECT_EQ(all.chunk, 4U);
  EXPECT_EQ(all.more, 2U);
  EXPECT_EQ(all.received, 3U);
  EXPECT_EQ(all.shared->offset, 1000U);
  EXPECT_EQ(all.shared->bytes, 138U);
}

TEST(Merge, NoOtherContributions) {
  const Contribution last = Raw(4, 1000, 64);
  EXPECT_FALSE(Joined(last, Raw(6, 1064, 64)));  // a chunk is missing
  EXPECT_FALSE(Joined(last, Raw(5, 1065, 64)));  // a byte is
  EXPECT_FALSE(Joined(last, Raw(4, 1064, 64)));
  const auto changed = [](auto change) {
    Contribution next = Raw(5, 1064, 64);
    change(next);
    return next;
  };
  EXPECT_FALSE(Joined(last, changed([](Contribution& c) { c.shared->segment = 0; })));
  EXPECT_FALSE(Joined(last, changed([](Contribution& c) { c.shared->raw = false; })));
  EXPECT_FALSE(Joined(last, changed([](Contribution& c) { c.shared->takes_result = false; })));
  EXPECT_FALSE(Joined(last, changed([](Contribution& c) { c.id.attempt = 2; })));
  EXPECT_FALSE(Joined(last, changed([](Contribution& c) { c.generation = 6; })));
  EXPECT_FALSE(Joined(last, changed([](Contribution& c) { c.rank = 3; })));
  EXPECT_FALSE(Joined(last, changed([](Contribution& c) { c.digest = 1; })));
  EXPECT_FALSE(Joined(last, changed([](Contribution& c) { c.shared.reset(); })));
  EXPECT_FALSE(Joined(last, Header(Ack{.id = kRound})));
}

TEST(Merge, ResultsInPlace) {
  Header last = InPlace(0);
  EXPECT_TRUE(Merge(last, InPlace(1)));
  EXPECT_TRUE(Merge(last, InPlace(2)));
  const auto& all = std::get<Result>(last);
  EXPECT_EQ(all.chunk, 0U);
  EXPECT_EQ(all.more, 2U);
  EXPECT_EQ(all.digest, 0U);
  EXPECT_EQ(all.reduce_nanoseconds, 30U);
  EXPECT_FALSE(Joined(last, InPlace(4)));
  Result elsewhere = InPlace(3);
  elsewhere.in_place = false;
  EXPECT_FALSE(Joined(last, elsewhere));
}

// What one side joins the other side reads.
TEST(Merge, NotMoreThanAFrameMayHave) {
  Result many = InPlace(0);
  many.more = kMaxMore - 1;
  Header last = many;
  EXPECT_TRUE(Merge(last, InPlace(kMaxMore)));
  EXPECT_TRUE(FromProto(ToProto(last)).ok());
  EXPECT_FALSE(Joined(last, InPlace(kMaxMore + 1)));
}

}  // namespace
}  // namespace gradwire::wire

// Several frames in one message, and how many.
#include "proto/wire/bundle.h"

#include <grpcpp/support/slice.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/v1/aggregation.pb.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"
#include "tests/proto/frame_samples.h"

namespace gradwire::wire {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr ParseLimits kLimits{.max_payload_bytes = 1 << 16};

PayloadRef Bytes(std::size_t bytes, std::uint8_t first) {
  std::vector<std::byte> content(bytes);
  std::uint8_t next = first;
  for (std::byte& byte : content) byte = std::byte{next++};
  return OwnedPayload::Make(std::move(content));
}

std::vector<std::byte> Joined(const PayloadRef& payload) {
  std::vector<std::byte> content;
  if (payload == nullptr) return content;
  for (const auto& piece : payload->pieces()) {
    content.insert(content.end(), piece.begin(), piece.end());
  }
  return content;
}

Ack AckOf(std::uint32_t received) { return {.id = {}, .received = received}; }

grpc::ByteBuffer Message(const std::vector<Frame>& frames) {
  std::vector<grpc::ByteBuffer> serialized;
  for (const Frame& frame : frames) {
    serialized.push_back(Serialize(frame.header, frame.payload));
    if (frame.after > 0) PutAfter(serialized.back(), frame.after);
  }
  return Bundle(std::move(serialized));
}

std::string Flat(const grpc::ByteBuffer& message) {
  grpc::Slice slice;
  EXPECT_TRUE(message.DumpToSingleSlice(&slice).ok());
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

grpc::ByteBuffer InSlicesOf(const std::string& bytes, std::size_t size) {
  std::vector<grpc::Slice> slices;
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    slices.emplace_back(bytes.data() + at, std::min(size, bytes.size() - at));
  }
  return {slices.data(), slices.size()};
}

// Each kind of frame, with payloads that are copied and payloads that are referred to.
std::vector<Frame> Frames() {
  std::vector<Frame> frames;
  std::uint8_t first = 0;
  for (const Sample& sample : AllSamples()) {
    if (frames.size() == kMaxBundleFrames) break;
    const std::size_t bytes = first % 3 == 0 ? 0 : first % 3 == 1 ? 100 : 2 * kCopyBytes + first;
    frames.push_back({.header = sample.header,
                      .payload = bytes == 0 ? nullptr : Bytes(bytes, first),
                      .after = first % 4 == 0 ? first : 0U});
    ++first;
  }
  return frames;
}

void ExpectSame(const std::vector<Frame>& got, const std::vector<Frame>& want) {
  ASSERT_THAT(got, SizeIs(want.size()));
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].header, want[i].header) << i;
    EXPECT_EQ(Joined(got[i].payload), Joined(want[i].payload)) << i;
    EXPECT_EQ(got[i].after, want[i].after) << i;
  }
}

TEST(Bundle, CarriesFramesInTheirOrderWhateverTheSlices) {
  const std::vector<Frame> frames = Frames();
  const std::string bytes = Flat(Message(frames));
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{5000}, bytes.size()}) {
    const auto parsed = ParseBundle(InSlicesOf(bytes, size), {.max_payload_bytes = 1 << 20});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    ExpectSame(*parsed, frames);
  }
}

TEST(Bundle, OfOneFrameIsThatFrame) {
  const std::vector<Frame> one = {{.header = AckOf(3), .payload = Bytes(9, 1)}};
  EXPECT_EQ(Flat(Message(one)), Flat(Serialize(one[0].header, one[0].payload)));
  const auto parsed = ParseBundle(Message(one), kLimits);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ExpectSame(*parsed, one);
}

// What any client's generated code reads and writes.
TEST(Bundle, IsWhatProtobufReads) {
  const std::vector<Frame> frames = {
      {.header = AckOf(1)}, {.header = AckOf(2), .payload = Bytes(5, 7)}, {.header = AckOf(3)}};
  v1::Frame message;
  ASSERT_TRUE(message.ParseFromString(Flat(Message(frames))));
  EXPECT_EQ(message.header().ack().received(), 1U);
  ASSERT_EQ(message.bundle_size(), 2);
  EXPECT_EQ(message.bundle(0).header().ack().received(), 2U);
  EXPECT_EQ(message.bundle(0).payload(), std::string("\x07\x08\x09\x0a\x0b"));
  EXPECT_EQ(message.bundle(1).header().ack().received(), 3U);

  // The order of fields does not matter to protobuf.
  v1::Frame other;
  *other.add_bundle() = message.bundle(0);
  const auto parsed = ParseBundle(
      InSlicesOf(other.SerializeAsString() + Flat(Serialize(AckOf(1), nullptr)), 3), kLimits);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->front().header, Header(AckOf(1)));
  EXPECT_EQ(parsed->back().header, Header(AckOf(2)));
}

TEST(Bundle, RefusesTooManyFrames) {
  const std::vector<Frame> most(kMaxBundleFrames, Frame{.header = Heartbeat{}});
  EXPECT_TRUE(ParseBundle(Message(most), kLimits).ok());
  const std::vector<Frame> more(kMaxBundleFrames + 1, Frame{.header = Heartbeat{}});
  const absl::Status refused = ParseBundle(Message(more), kLimits).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("more than 63 frames"));
}

TEST(Bundle, RefusesTooManyBytes) {
  const Frame large{.header = CollectiveChunk{}, .payload = Bytes(kLimits.max_payload_bytes, 0)};
  EXPECT_TRUE(ParseBundle(Message(std::vector<Frame>(4, large)), kLimits).ok());
  const absl::Status refused =
      ParseBundle(Message(std::vector<Frame>(11, large)), kLimits).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("frame: has"));
}

// Each frame has the limits that it has alone.
TEST(Bundle, RefusesAFrameThatIsTooLarge) {
  const std::vector<Frame> frames = {
      {.header = Heartbeat{}},
      {.header = CollectiveChunk{}, .payload = Bytes(kLimits.max_payload_bytes + 1, 0)}};
  const absl::Status refused = ParseBundle(Message(frames), kLimits).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("payload: has 65537 bytes"));
}

// A bundle in a bundle would make depth and number of frames the sender's choice.
TEST(Bundle, FramesWithListsGoAlone) {
  EXPECT_GE(BundleBytes(DrawPlan{}, 0), kMaxBundleBytes);
  EXPECT_GE(BundleBytes(Announce{}, 100), kMaxBundleBytes);
  for (const Sample& sample : AllSamples()) {
    const std::size_t counted = BundleBytes(sample.header, 0);
    EXPECT_GE(counted, Serialize(sample.header, nullptr).Length()) << sample.name;
  }
}

TEST(Bundle, HasNoBundlesInIt) {
  v1::Frame inner;
  ASSERT_TRUE(inner.ParseFromString(Flat(Message({{.header = AckOf(2)},  //
                                                  {.header = AckOf(3)}}))));
  v1::Frame outer;
  ASSERT_TRUE(outer.ParseFromString(Flat(Serialize(AckOf(1), nullptr))));
  *outer.add_bundle() = inner;
  const absl::Status refused =
      ParseBundle(InSlicesOf(outer.SerializeAsString(), 100), kLimits).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("bundle: has frames"));
}

TEST(Bundle, IsRefusedWhereOneFrameIsExpected) {
  const absl::Status refused = Parse(Message({{.header = AckOf(1)},  //
                                              {.header = AckOf(2)}}),
                                     kLimits)
                                   .status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
}

class ArrivalRateTest : public ::testing::Test {
 protected:
  // `bytes` each millisecond, for so many.
  void Arrive(std::size_t bytes, int times) {
    for (int i = 0; i < times; ++i) {
      now_ += milliseconds(1);
      rate_.Add(bytes, now_);
    }
  }
  ArrivalRate rate_;
  ArrivalRate::Clock::time_point now_{std::chrono::hours(1)};
};

TEST_F(ArrivalRateTest, AtFirstMessagesHaveOneFrame) {
  EXPECT_EQ(rate_.Budget(), 1U);
  rate_.Add(1 << 20, now_);
  EXPECT_EQ(rate_.Budget(), 1U) << "it says nothing about the time it took";
}

TEST_F(ArrivalRateTest, AMessageIsWhatArrivesInSixteenMilliseconds) {
  Arrive(3000, 100);
  EXPECT_NEAR(static_cast<double>(rate_.Budget()), 48000, 1000);
}

TEST_F(ArrivalRateTest, FollowsTheRate) {
  Arrive(3000, 100);
  Arrive(9000, 100);
  EXPECT_NEAR(static_cast<double>(rate_.Budget()), 144000, 3000);
  Arrive(1000, 200);
  EXPECT_NEAR(static_cast<double>(rate_.Budget()), 16000, 1000);
}

TEST_F(ArrivalRateTest, PausesAreNoRate) {
  Arrive(3000, 100);
  now_ += milliseconds(500);
  Arrive(3000, 100);
  EXPECT_NEAR(static_cast<double>(rate_.Budget()), 48000, 1000);
}

TEST_F(ArrivalRateTest, HasALimit) {
  Arrive(10'000'000, 100);
  EXPECT_EQ(rate_.Budget(), kMaxBundleBytes);
}

}  // namespace
}  // namespace gradwire::wire

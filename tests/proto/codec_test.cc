#include "proto/wire/codec.h"

#include <gmock/gmock.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/v1/aggregation.pb.h"
#include "tests/proto/frame_samples.h"

namespace gradwire::wire {
namespace {

// Around the limit below which payloads are copied, in one and in several slices.
const std::size_t kPayloadSizes[] = {0, 1, 100, kCopyBytes, kCopyBytes + 1, 3 * kCopyBytes + 5};

const std::size_t kPieceSizes[] = {1, 2, 3, 7, 8, 23, 24, 64, 600, 5000};

// Addresses are the point of some tests, and this payload knows its own.
class PiecedPayload final : public Payload {
 public:
  PiecedPayload(std::string content, std::vector<std::size_t> sizes)
      : content_(std::move(content)) {
    std::span<const std::byte> rest = std::as_bytes(std::span(content_));
    for (const std::size_t size : sizes) {
      pieces_.push_back(rest.first(size));
      rest = rest.subspan(size);
    }
    pieces_.push_back(rest);
  }
  std::span<const std::span<const std::byte>> pieces() const override { return pieces_; }
  std::size_t bytes() const override { return content_.size(); }

 private:
  std::string content_;
  std::vector<std::span<const std::byte>> pieces_;
};

void ExpectFrame(const absl::StatusOr<Frame>& frame, const Header& header,
                 const std::string& payload) {
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_TRUE(frame->header == header);
  EXPECT_EQ(Content(frame->payload), payload);
  EXPECT_EQ(frame->payload == nullptr, payload.empty());
  EXPECT_EQ(frame->payload == nullptr ? 0 : frame->payload->bytes(), payload.size());
}

TEST(CodecTest, SamplesCoverEveryKind) {
  const std::vector<Sample> samples = Samples();
  ASSERT_EQ(samples.size(), std::variant_size_v<Header>);
  for (std::size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(samples[i].header.index(), i);
}

TEST(CodecTest, ReadsWhatItWrites) {
  for (const Sample& sample : AllSamples()) {
    for (const std::size_t size : kPayloadSizes) {
      SCOPED_TRACE(sample.name + " with a payload of " + std::to_string(size));
      const std::string content = Pattern(size);
      const grpc::ByteBuffer bytes = Serialize(sample.header, MakePayload(content));
      ExpectFrame(Parse(bytes, {}), sample.header, content);
    }
  }
}

TEST(CodecTest, WritesTheBytesOfProtobuf) {
  for (const Sample& sample : AllSamples()) {
    for (const std::size_t size : kPayloadSizes) {
      SCOPED_TRACE(sample.name + " with a payload of " + std::to_string(size));
      const std::string content = Pattern(size);
      const std::string bytes = Joined(Serialize(sample.header, MakePayload(content)));
      EXPECT_EQ(bytes, EncodeWithProtobuf(sample.header, content));
      v1::Frame frame;
      ASSERT_TRUE(frame.ParseFromString(bytes));
      EXPECT_EQ(frame.payload(), content);
    }
  }
}

TEST(CodecTest, NoPayloadAndEmptyPayloadAreTheSame) {
  const Header header = SampleOf<Result>();
  EXPECT_EQ(Joined(Serialize(header, nullptr)), Joined(Serialize(header, MakePayload(""))));
}

TEST(CodecTest, ReadsTheBytesOfProtobufInSlicesOfAnySize) {
  for (const Sample& sample : AllSamples()) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{5}, 3 * kCopyBytes}) {
      const std::string content = Pattern(size);
      const std::string bytes = EncodeWithProtobuf(sample.header, content);
      for (const std::size_t piece : kPieceSizes) {
        SCOPED_TRACE(sample.name + " in slices of " + std::to_string(piece));
        ExpectFrame(Parse(CutEvery(bytes, piece), {}), sample.header, content);
      }
    }
  }
}

TEST(CodecTest, ReadsAFrameThatIsCutAnywhere) {
  const Header header = SampleOf<Announce>();
  const std::string content = Pattern(kCopyBytes + 30);
  const std::string bytes = EncodeWithProtobuf(header, content);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    SCOPED_TRACE("cut at " + std::to_string(cut));
    ExpectFrame(Parse(Cut(bytes, {cut}), {}), header, content);
    ExpectFrame(Parse(Cut(bytes, {cut / 2, cut / 2, cut}), {}), header, content);
  }
}

TEST(CodecTest, ReceivedPayloadIsTheReceivedMemory) {
  const std::string content = Pattern(100'000);
  const grpc::ByteBuffer bytes = CutEvery(EncodeWithProtobuf(SampleOf<Result>(), content), 8192);
  std::set<const std::byte*> ends;
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(bytes.Dump(&slices).ok());
  for (const grpc::Slice& slice : slices)
    ends.insert(reinterpret_cast<const std::byte*>(slice.end()));
  absl::StatusOr<Frame> frame = Parse(bytes, {});
  ASSERT_TRUE(frame.ok()) << frame.status();
  ASSERT_EQ(frame->payload->pieces().size(), slices.size());
  for (const std::span<const std::byte>& piece : frame->payload->pieces()) {
    EXPECT_EQ(ends.count(piece.data() + piece.size()), 1U);
  }
}

TEST(CodecTest, ReceivedPayloadOutlivesTheBuffer) {
  const std::string content = Pattern(50'000);
  absl::StatusOr<Frame> frame;
  {
    const grpc::ByteBuffer bytes = CutEvery(EncodeWithProtobuf(SampleOf<Result>(), content), 9000);
    frame = Parse(bytes, {});
  }
  ExpectFrame(frame, SampleOf<Result>(), content);
}

TEST(CodecTest, ReceivedPayloadInCrumbsIsGathered) {
  const std::string content = Pattern(50'000);
  const absl::StatusOr<Frame> frame =
      Parse(CutEvery(EncodeWithProtobuf(SampleOf<Result>(), content), 30), {});
  ExpectFrame(frame, SampleOf<Result>(), content);
  EXPECT_EQ(frame->payload->pieces().size(), 1U);
}

TEST(CodecTest, SentSlicesAreThePayloadsMemory) {
  const auto payload =
      std::make_shared<const PiecedPayload>(Pattern(20'000), std::vector<std::size_t>{9000, 0, 30});
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(Serialize(SampleOf<Contribution>(), payload).Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 4U);
  const std::vector<std::size_t> of_slice = {0, 2, 3};
  for (std::size_t i = 0; i < of_slice.size(); ++i) {
    const std::span<const std::byte> piece = payload->pieces()[of_slice[i]];
    EXPECT_EQ(reinterpret_cast<const std::byte*>(slices[i + 1].begin()), piece.data());
    EXPECT_EQ(slices[i + 1].size(), piece.size());
  }
}

TEST(CodecTest, SentPayloadLivesAsLongAsItsSlices) {
  PayloadRef payload = MakePayload(Pattern(20'000));
  const std::weak_ptr<const Payload> watch = payload;
  grpc::ByteBuffer bytes = Serialize(SampleOf<Result>(), payload);
  grpc::ByteBuffer copy = bytes;
  payload.reset();
  bytes.Clear();
  EXPECT_FALSE(watch.expired());
  ExpectFrame(Parse(copy, {}), SampleOf<Result>(), Pattern(20'000));
  copy.Clear();
  EXPECT_TRUE(watch.expired());
}

TEST(CodecTest, SmallPayloadsGoIntoTheHeaderSlice) {
  const PayloadRef payload = MakePayload(Pattern(kCopyBytes));
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(Serialize(SampleOf<Result>(), payload).Dump(&slices).ok());
  EXPECT_EQ(slices.size(), 1U);
  EXPECT_EQ(payload.use_count(), 1);
}

TEST(CodecTest, ForwardsAReceivedPayloadWithoutACopy) {
  const std::string content = Pattern(100'000);
  const absl::StatusOr<Frame> received =
      Parse(CutEvery(EncodeWithProtobuf(SampleOf<CollectiveChunk>(), content), 8192), {});
  ASSERT_TRUE(received.ok()) << received.status();
  std::vector<grpc::Slice> slices;
  const grpc::ByteBuffer bytes = Serialize(SampleOf<CollectiveChunk>(), received->payload);
  ASSERT_TRUE(bytes.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), received->payload->pieces().size() + 1);
  for (std::size_t i = 1; i < slices.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<const std::byte*>(slices[i].begin()),
              received->payload->pieces()[i - 1].data());
  }
  ExpectFrame(Parse(bytes, {}), SampleOf<CollectiveChunk>(), content);
}

// The ends of what a varint takes.
const std::uint64_t kAfters[] = {0, 1, 127, 128, std::uint64_t{1} << 35, ~std::uint64_t{0}};

TEST(CodecTest, ReadsTheAfterThatItPut) {
  for (const Sample& sample : AllSamples()) {
    for (const std::size_t size : kPayloadSizes) {
      for (const std::uint64_t after : kAfters) {
        SCOPED_TRACE(sample.name + " with a payload of " + std::to_string(size) + " after " +
                     std::to_string(after));
        const std::string content = Pattern(size);
        grpc::ByteBuffer bytes = Serialize(sample.header, MakePayload(content));
        PutAfter(bytes, after);
        const absl::StatusOr<Frame> frame = Parse(bytes, {});
        ExpectFrame(frame, sample.header, content);
        EXPECT_EQ(frame->after, after);
        v1::Frame message;
        ASSERT_TRUE(message.ParseFromString(Joined(bytes)));
        EXPECT_EQ(message.after(), after);
        EXPECT_EQ(message.payload(), content);
      }
    }
  }
}

TEST(CodecTest, AFrameWithoutAfterIsAfterNothing) {
  const absl::StatusOr<Frame> frame = Parse(Serialize(SampleOf<Result>(), nullptr), {});
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->after, 0U);
}

TEST(CodecTest, CopiesOfAFrameHaveAnAfterOfTheirOwn) {
  const std::string content = Pattern(20'000);
  PayloadRef payload = MakePayload(content);
  const std::weak_ptr<const Payload> watch = payload;
  const std::byte* const memory = payload->pieces().front().data();
  grpc::ByteBuffer first = Serialize(SampleOf<Result>(), std::exchange(payload, nullptr));
  grpc::ByteBuffer second = first;
  PutAfter(first, 5);
  PutAfter(second, 700);
  for (grpc::ByteBuffer* bytes : {&first, &second}) {
    const absl::StatusOr<Frame> frame = Parse(*bytes, {});
    ExpectFrame(frame, SampleOf<Result>(), content);
    EXPECT_EQ(frame->after, bytes == &first ? 5U : 700U);
    EXPECT_EQ(frame->payload->pieces().front().data(), memory) << "not a copy";
  }
  first.Clear();
  EXPECT_FALSE(watch.expired());
  second.Clear();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace gradwire::wire

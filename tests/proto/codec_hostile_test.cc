// What may arrive from anybody: orders that this codec never writes, cut frames, sizes that lie.
#include <gmock/gmock.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "gradwire/v1/aggregation.pb.h"
#include "proto/wire/codec.h"
#include "proto/wire/proto_conversion.h"
#include "tests/proto/frame_samples.h"

namespace gradwire::wire {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string Field(std::uint32_t number, const std::string& content) {
  return Varint(number << 3 | 2) + Varint(content.size()) + content;
}

std::string HeaderBytes(const Header& header) { return ToProto(header).SerializeAsString(); }

// Parsed whole and byte by byte; both must agree.
absl::StatusOr<Frame> ParseBytes(const std::string& bytes, const ParseLimits& limits = {}) {
  absl::StatusOr<Frame> whole = Parse(Cut(bytes, {}), limits);
  const absl::StatusOr<Frame> pieces = Parse(CutEvery(bytes, 1), limits);
  EXPECT_EQ(whole.status(), pieces.status());
  return whole;
}

void ExpectLikeProtobuf(const std::string& bytes) {
  v1::Frame expected;
  ASSERT_TRUE(expected.ParseFromString(bytes));
  const absl::StatusOr<Frame> frame = ParseBytes(bytes);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(ToProto(frame->header).SerializeAsString(), expected.header().SerializeAsString());
  EXPECT_EQ(Content(frame->payload), expected.payload());
  EXPECT_EQ(frame->after, expected.after());
}

TEST(HostileFrameTest, FieldsInAnyOrder) {
  const std::string header = Field(1, HeaderBytes(SampleOf<Announce>()));
  const std::string payload = Field(2, Pattern(6000));
  const std::string other = Field(2, Pattern(17));
  ExpectLikeProtobuf(payload + header);
  ExpectLikeProtobuf(other + header + payload);
  ExpectLikeProtobuf(payload + header + other);
  ExpectLikeProtobuf(payload + header + Field(2, ""));
  ExpectLikeProtobuf(header + payload + header);
}

TEST(HostileFrameTest, AfterAnywhere) {
  const std::string header = Field(1, HeaderBytes(SampleOf<Result>()));
  const std::string payload = Field(2, Pattern(6000));
  const std::uint64_t most = ~std::uint64_t{0};
  for (const std::uint64_t after : {std::uint64_t{0}, std::uint64_t{300}, most}) {
    const std::string field = Varint(3 << 3) + Varint(after);
    ASSERT_EQ(Varint(most).size(), 10U);
    for (const std::string& bytes :
         {header + payload + field, header + field + payload, field + payload + header,
          // The last one counts.
          Varint(3 << 3) + Varint(7) + header + field, field + header + Varint(3 << 3) + Varint(7),
          // Zero, in all the bytes that a number may have.
          header + field + Varint(3 << 3) + std::string(9, '\x80') + std::string(1, '\0')}) {
      ExpectLikeProtobuf(bytes);
    }
    const absl::StatusOr<Frame> frame = ParseBytes(header + payload + field);
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->after, after);
  }
}

TEST(HostileFrameTest, AfterOfAnotherWireTypeIsSkipped) {
  const std::string header = Field(1, HeaderBytes(SampleOf<Result>()));
  const std::string after = Varint(3 << 3) + Varint(5);
  for (const std::string& other :
       {Varint(3 << 3 | 1) + std::string(8, 'x'), Field(3, "text"),
        Varint(3 << 3 | 5) + std::string(4, 'x'),
        Varint(3 << 3 | 3) + Varint(3 << 3) + Varint(9) + Varint(3 << 3 | 4)}) {
    ExpectLikeProtobuf(header + other);
    ExpectLikeProtobuf(header + after + other);
    const absl::StatusOr<Frame> frame = ParseBytes(header + after + other);
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->after, 5U);
  }
}

TEST(HostileFrameTest, HeaderInSeveralOccurrencesIsMerged) {
  const std::string bytes = HeaderBytes(SampleOf<Restart>());
  const std::string part = Field(1, bytes);
  ExpectLikeProtobuf(part + part);
  ExpectLikeProtobuf(Field(1, "") + part + Field(2, "x") + Field(1, ""));
  // The last body wins when the kinds differ.
  ExpectLikeProtobuf(part + Field(1, HeaderBytes(SampleOf<Ack>())));
  v1::Header attempt;
  attempt.mutable_restart()->set_attempt(7);
  ExpectLikeProtobuf(part + Field(2, Pattern(9)) + Field(1, attempt.SerializeAsString()));
}

TEST(HostileFrameTest, UnknownFieldsAreSkipped) {
  const std::string header = Field(1, HeaderBytes(SampleOf<Result>()));
  const std::string payload = Field(2, Pattern(5000));
  const std::string group = Varint(99 << 3 | 3) + Varint(1 << 3) + Varint(300) +
                            Field(2, "inside") + Varint(98 << 3 | 3) + Varint(98 << 3 | 4) +
                            Varint(99 << 3 | 4);
  const std::vector<std::string> unknown = {
      Varint(5 << 3) + Varint(~std::uint64_t{0}),
      Varint(4 << 3 | 1) + std::string(8, 'x'),
      Field(536870911, "later"),
      Varint(6 << 3 | 5) + std::string(4, 'x'),
      Varint(1 << 3) + Varint(1),  // known numbers with another wire type
      Varint(2 << 3 | 5) + std::string(4, 'x'),
      group};
  for (const std::string& field : unknown) {
    ExpectLikeProtobuf(field + header + payload);
    ExpectLikeProtobuf(header + field + payload);
    ExpectLikeProtobuf(header + payload + field);
  }
}

TEST(HostileFrameTest, CutAtAnyByte) {
  for (const Sample& sample : Samples()) {
    SCOPED_TRACE(sample.name);
    const std::string bytes = EncodeWithProtobuf(sample.header, Pattern(300));
    const std::string header = Field(1, HeaderBytes(sample.header));
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const absl::StatusOr<Frame> frame = ParseBytes(bytes.substr(0, size));
      EXPECT_EQ(frame.ok(), size == header.size()) << size;
      EXPECT_TRUE(frame.ok() || absl::IsInvalidArgument(frame.status()));
    }
  }
}

TEST(HostileFrameTest, AnyByteReplaced) {
  for (const Sample& sample : Samples()) {
    const std::string bytes = EncodeWithProtobuf(sample.header, Pattern(20));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
        std::string broken = bytes;
        broken[i] = static_cast<char>(value);
        const absl::StatusOr<Frame> frame = ParseBytes(broken);
        v1::Frame message;
        EXPECT_TRUE(!frame.ok() || message.ParseFromString(broken));
      }
    }
  }
}

TEST(HostileFrameTest, SizeLimits) {
  const std::string header = Field(1, HeaderBytes(SampleOf<Result>()));
  const ParseLimits limits{.max_payload_bytes = 5000, .max_header_bytes = 100};
  EXPECT_TRUE(ParseBytes(header + Field(2, Pattern(5000)), limits).ok());
  EXPECT_THAT(std::string(ParseBytes(header + Field(2, Pattern(5001)), limits).status().message()),
              AllOf(HasSubstr("payload"), HasSubstr("5001"), HasSubstr("5000")));
  // A payload that a later one replaces counts too.
  EXPECT_FALSE(ParseBytes(Field(2, Pattern(5001)) + header + Field(2, "x"), limits).ok());

  v1::Header hello;
  hello.mutable_hello()->set_token(std::string(96, 't'));
  ASSERT_EQ(hello.ByteSizeLong(), 100U);
  EXPECT_TRUE(ParseBytes(Field(1, hello.SerializeAsString()), limits).ok());
  hello.mutable_hello()->set_token(std::string(97, 't'));
  const std::string larger = hello.SerializeAsString();
  EXPECT_THAT(std::string(ParseBytes(Field(1, larger), limits).status().message()),
              AllOf(HasSubstr("header"), HasSubstr("101"), HasSubstr("100")));
  EXPECT_THAT(
      std::string(
          ParseBytes(header + header + header + header + header, limits).status().message()),
      HasSubstr("header"));
  EXPECT_THAT(std::string(ParseBytes(header + Field(9, Pattern(6000)), limits).status().message()),
              AllOf(HasSubstr("frame"), HasSubstr("5164")));
}

TEST(HostileFrameTest, SizesThatLie) {
  const std::string header = Field(1, HeaderBytes(SampleOf<Result>()));
  for (const std::uint64_t size :
       {std::uint64_t{4}, std::uint64_t{1} << 31, std::uint64_t{0xffffffff},
        (std::uint64_t{1} << 35) - 1, ~std::uint64_t{0}}) {
    for (const std::uint32_t field : {1U, 2U, 3U}) {
      const std::string bytes = header + Varint(field << 3 | 2) + Varint(size) + "abc";
      EXPECT_EQ(ParseBytes(bytes).status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST(HostileFrameTest, BytesThatAreNoFrame) {
  const std::string header = Field(1, HeaderBytes(SampleOf<Result>()));
  const std::string result = HeaderBytes(SampleOf<Result>());
  std::string deep;
  for (int i = 0; i < 101; ++i) deep += Varint(3 << 3 | 3);
  for (int i = 0; i < 101; ++i) deep += Varint(3 << 3 | 4);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "header"},
      {Field(2, "payload"), "header"},
      {Field(1, ""), "header.body"},
      {Field(1, Field(200, "a kind of a later version")), "header.body"},
      {Field(1, "\xff\xff\xff"), "header"},
      // Each occurrence must be whole.
      {Field(1, result.substr(0, 5)) + Field(1, result.substr(5)), "header"},
      {header + std::string(1, '\0'), "tag 0"},
      {header + Varint(3 << 3 | 6), "tag 30"},
      {header + Varint(3 << 3 | 7), "tag 31"},
      {header + Varint(3 << 3 | 4), "group 3 ends"},
      {header + Varint(3 << 3 | 3), "cut short"},
      {header + Varint(3 << 3 | 3) + Varint(4 << 3 | 4), "the end of 3"},
      {header + deep, "100 groups"},
      {header + std::string(6, '\xff'), "at most 5"},
      {header + "\xff\xff\xff\xff\x7f", "tag 34359738367"},
      {header + Varint(5 << 3) + std::string(11, '\xff'), "at most 10"},
      {header + Varint(3 << 3) + std::string(11, '\xff'), "at most 10"},
      {header + Varint(3 << 3), "a number is cut short"},
      {header + Varint(3 << 3) + std::string(9, '\xff'), "a number is cut short"},
      {header + Varint(2 << 3 | 2) + std::string(6, '\x80'), "at most 5"},
  };
  for (const auto& [bytes, what] : cases) {
    const absl::Status status = ParseBytes(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(what), HasSubstr("allowed")));
  }
}

TEST(HostileFrameTest, NoBufferAtAll) {
  EXPECT_EQ(Parse(grpc::ByteBuffer(), {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::wire

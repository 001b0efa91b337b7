// Frames of members that leave or are late, from a peer that may send anything.
#include "proto/wire/late_frames.h"

#include <cstdint>
#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "proto/wire/codec.h"
#include "proto/wire/proto_conversion.h"
#include "tests/proto/frame_samples.h"

namespace gradwire::wire {
namespace {

// The whole answer to a header that `change` has made hostile; the same where it comes from a
// stream.
std::string Refusal(const Header& sample, const std::function<void(v1::Header&)>& change) {
  v1::Header header = ToProto(sample);
  change(header);
  const absl::Status status = FromProto(header).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << header.ShortDebugString();
  v1::Frame frame;
  *frame.mutable_header() = header;
  EXPECT_EQ(Parse(Cut(frame.SerializeAsString(), {}), {}).status(), status);
  return std::string(status.message());
}

TEST(LateFrames, HostileHandOversAreRefusedByField) {
  const auto refusal = [](const std::function<void(v1::HandOver&)>& change) {
    return Refusal(SampleOf<HandOver>(),
                   [&](v1::Header& header) { change(*header.mutable_hand_over()); });
  };
  EXPECT_EQ(refusal([](v1::HandOver& message) { message.set_id(0); }),
            "hand_over.id: 0; allowed: 1 to 18446744073709551615");
  EXPECT_EQ(refusal([](v1::HandOver& message) { message.set_rank(-1); }),
            "hand_over.rank: -1; allowed: 0 to 4095");
  EXPECT_EQ(refusal([](v1::HandOver& message) { message.set_rank(4096); }),
            "hand_over.rank: 4096; allowed: 0 to 4095");
  EXPECT_EQ(refusal([](v1::HandOver& message) { message.set_bytes(0); }),
            "hand_over.bytes: 0; allowed: 1 to 17592186044416");
  EXPECT_EQ(refusal([](v1::HandOver& message) { message.set_offset(5001); }),
            "hand_over.offset: 5001; allowed: 0 to 5000");
}

TEST(LateFrames, HostileAnswersAreRefusedByField) {
  const auto refusal = [](const std::function<void(v1::HandOverAnswer&)>& change) {
    return Refusal(SampleOf<HandOverAnswer>(),
                   [&](v1::Header& header) { change(*header.mutable_hand_over_answer()); });
  };
  EXPECT_EQ(refusal([](v1::HandOverAnswer& message) { message.set_id(0); }),
            "hand_over_answer.id: 0; allowed: 1 to 18446744073709551615");
  EXPECT_EQ(refusal([](v1::HandOverAnswer& message) { message.set_rank(-7); }),
            "hand_over_answer.rank: -7; allowed: 0 to 4095");
  EXPECT_EQ(
      refusal([](v1::HandOverAnswer& message) { message.set_refusal(std::string(1025, 'x')); }),
      "hand_over_answer.refusal's size: 1025; allowed: 0 to 1024");
}

TEST(LateFrames, HostileMissedBucketsAreRefusedByField) {
  const auto refusal = [](const std::function<void(v1::Missed&)>& change) {
    return Refusal(SampleOf<Missed>(),
                   [&](v1::Header& header) { change(*header.mutable_missed()); });
  };
  EXPECT_EQ(refusal([](v1::Missed& message) { message.clear_parameters(); }),
            "missed.parameters: has 0 entries; allowed: 1 to 1048576");
  EXPECT_EQ(refusal([](v1::Missed& message) { message.set_parameters(1, 1 << 20); }),
            "missed.parameters: 1048576; allowed: 0 to 1048575");
  EXPECT_EQ(refusal([](v1::Missed& message) { message.mutable_id()->set_step(-1); }),
            "missed.id.step: -1; allowed: 0 to 9223372036854775807");
}

}  // namespace
}  // namespace gradwire::wire

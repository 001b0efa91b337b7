// Any bytes in any slices: Parse must not fall over, must agree with protobuf, and what it accepts
// must survive Serialize.
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gradwire/v1/aggregation.pb.h"
#include "proto/wire/bundle.h"
#include "proto/wire/codec.h"
#include "proto/wire/proto_conversion.h"

namespace gradwire::wire {
namespace {

constexpr ParseLimits kLimits{.max_payload_bytes = 1 << 16, .max_header_bytes = 1 << 12};

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "frame_fuzz: %s\n", what);
  std::abort();
}

std::string Content(const PayloadRef& payload) {
  std::string content;
  if (payload == nullptr) return content;
  for (const std::span<const std::byte>& piece : payload->pieces()) {
    content.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  Require(content.size() == payload->bytes(), "a payload's pieces do not have its size");
  return content;
}

// 0: one slice. Else slices whose sizes go round in a pattern that `choice` picks.
grpc::ByteBuffer InSlices(const std::string& bytes, unsigned choice) {
  std::vector<grpc::Slice> slices;
  std::size_t begin = 0;
  for (unsigned i = 0; begin < bytes.size() || slices.empty(); ++i) {
    const std::size_t wanted = choice == 0 ? bytes.size() : (choice * (i + 1)) % 61;
    const std::size_t size = std::min(wanted, bytes.size() - begin);
    slices.emplace_back(bytes.data() + begin, size);
    begin += size;
  }
  return {slices.data(), slices.size()};
}

// What is one frame is one in a bundle too; the others are frames that were allowed alone.
void TestBundle(const std::string& bytes, unsigned choice) {
  const absl::StatusOr<Frame> alone = Parse(InSlices(bytes, choice), kLimits);
  const absl::StatusOr<std::vector<Frame>> frames = ParseBundle(InSlices(bytes, choice), kLimits);
  if (!frames.ok()) {
    Require(frames.status().code() == absl::StatusCode::kInvalidArgument, "not InvalidArgument");
    return;
  }
  Require(!frames->empty() && frames->size() <= kMaxBundleFrames, "a bundle of another size");
  v1::Frame message;
  Require(message.ParseFromString(bytes), "a bundle that protobuf refuses");
  Require(static_cast<std::size_t>(message.bundle_size()) + 1 == frames->size(),
          "protobuf reads other frames");
  for (std::size_t i = 0; i < frames->size(); ++i) {
    const v1::Frame& one = i == 0 ? message : message.bundle(static_cast<int>(i) - 1);
    Require(one.payload() == Content((*frames)[i].payload), "protobuf reads another payload");
  }
  if (alone.ok()) Require(alone->header == frames->front().header, "another first frame");
}

void TestOneFrame(const std::string& bytes, unsigned choice) {
  const absl::StatusOr<Frame> frame = Parse(InSlices(bytes, choice), kLimits);
  if (!frame.ok()) {
    Require(frame.status().code() == absl::StatusCode::kInvalidArgument, "not InvalidArgument");
    return;
  }
  const std::string content = Content(frame->payload);
  v1::Frame message;
  Require(message.ParseFromString(bytes), "accepted, but protobuf refuses it");
  Require(message.payload() == content, "protobuf reads another payload");
  Require(message.after() == frame->after, "protobuf reads another after");
  const absl::StatusOr<Header> header = FromProto(message.header());
  Require(header.ok() && *header == frame->header, "protobuf reads another header");

  // A header may grow when it is written out: what was packed or left out is not.
  const ParseLimits wide{.max_payload_bytes = 1 << 16, .max_header_bytes = 1 << 16};
  grpc::ByteBuffer written = Serialize(frame->header, frame->payload);
  PutAfter(written, frame->after);
  const absl::StatusOr<Frame> again = Parse(written, wide);
  Require(again.ok(), "refuses what it wrote");
  Require(again->after == frame->after, "reads another after than it wrote");
  Require(again->header == frame->header, "reads another header than it wrote");
  Require(Content(again->payload) == content, "reads another payload than it wrote");
}

}  // namespace
}  // namespace gradwire::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // protobuf reports each string that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  if (size == 0) return 0;
  const std::string bytes(data + 1, data + size);
  gradwire::wire::TestOneFrame(bytes, data[0] % 61U);
  gradwire::wire::TestBundle(bytes, data[0] % 61U);
  return 0;
}

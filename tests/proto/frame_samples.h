// Frames to test with, and what a test does with bytes.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <string>
#include <vector>

#include "gradwire/v1/aggregation.pb.h"
#include "proto/wire/frame.h"

namespace gradwire::wire {

struct Sample {
  std::string name;
  Header header;
};

// One of every kind, in the order of the variant, with no field at its default.
std::vector<Sample> Samples();
// With fields that came later, so that the frames of before stay as they are.
std::vector<Sample> LaterSamples();
std::vector<Sample> AllSamples();

// The sample of that kind.
template <class Kind>
Kind SampleOf() {
  for (const Sample& sample : Samples()) {
    if (const auto* kind = std::get_if<Kind>(&sample.header)) return *kind;
  }
  return {};
}

// `bytes` bytes, no two neighbours alike.
std::string Pattern(std::size_t bytes);

PayloadRef MakePayload(const std::string& content);
std::string Content(const PayloadRef& payload);

// A message in slices that end at `cuts`, which ascend.
grpc::ByteBuffer Cut(const std::string& bytes, const std::vector<std::size_t>& cuts);
grpc::ByteBuffer CutEvery(const std::string& bytes, std::size_t piece_bytes);
std::string Joined(const grpc::ByteBuffer& buffer);

// What protobuf's generated code writes and reads.
std::string EncodeWithProtobuf(const Header& header, const std::string& payload);

}  // namespace gradwire::wire

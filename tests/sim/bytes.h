// Payloads of the simulation, and arithmetic that shares nothing with hooks/.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "proto/wire/frame.h"
#include "tests/hooks/reference.h"
#include "tests/sim/random.h"

namespace gradwire::sim {

using ByteVector = std::vector<std::byte>;

// A payload in pieces of any size, as gRPC's slices are.
class CutPayload final : public wire::Payload {
 public:
  CutPayload(ByteVector content, Random& random) : content_(std::move(content)) {
    std::size_t at = 0;
    while (at < content_.size()) {
      std::size_t length = content_.size() - at;
      if (random.Percent(25)) length = 1 + random.Below(length);
      pieces_.push_back(std::span(content_).subspan(at, length));
      at += length;
    }
  }
  CutPayload(const CutPayload&) = delete;
  CutPayload& operator=(const CutPayload&) = delete;

  std::span<const std::span<const std::byte>> pieces() const override { return pieces_; }
  std::size_t bytes() const override { return content_.size(); }

 private:
  const ByteVector content_;
  std::vector<std::span<const std::byte>> pieces_;
};

inline wire::PayloadRef MakePayload(ByteVector content, Random& random) {
  return std::make_shared<CutPayload>(std::move(content), random);
}

inline ByteVector Flatten(const wire::Payload* payload) {
  ByteVector flat;
  if (payload == nullptr) return flat;
  for (const auto& piece : payload->pieces()) flat.insert(flat.end(), piece.begin(), piece.end());
  return flat;
}

inline double GetElement(DType dtype, std::span<const std::byte> bytes, std::size_t index) {
  std::uint64_t pattern = 0;
  const std::size_t width = ByteSize(dtype);
  std::memcpy(&pattern, bytes.data() + index * width, width);  // little endian
  return static_cast<double>(reference::Decode(dtype, pattern));
}

inline void PutElement(DType dtype, std::span<std::byte> bytes, std::size_t index, double value) {
  const std::uint64_t pattern = reference::Encode(dtype, static_cast<long double>(value));
  const std::size_t width = ByteSize(dtype);
  std::memcpy(bytes.data() + index * width, &pattern, width);
}

inline bool AllFinite(DType dtype, std::span<const std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size() / ByteSize(dtype); ++i) {
    if (!std::isfinite(GetElement(dtype, bytes, i))) return false;
  }
  return true;
}

template <class Wide>
ByteVector PlainReduceIn(const Segment& segment, const std::vector<const ByteVector*>& inputs) {
  const auto get = [&](const ByteVector* bytes, std::size_t i) {
    return static_cast<Wide>(GetElement(segment.dtype, *bytes, i));
  };
  ByteVector out(inputs.front()->size());
  for (std::size_t i = 0; i < out.size() / ByteSize(segment.dtype); ++i) {
    Wide sum = get(inputs.front(), i);
    for (std::size_t r = 1; r < inputs.size(); ++r) sum += get(inputs[r], i);
    if (segment.op == ReduceOp::kMean) sum /= static_cast<Wide>(inputs.size());
    PutElement(segment.dtype, out, i, static_cast<double>(sum));
  }
  return out;
}

// Rank order, in fp64 (fp32 for the 16-bit types, as hooks/reduce.h says), rounded once.
inline ByteVector PlainReduce(const Segment& segment,
                              const std::vector<const ByteVector*>& inputs) {
  return ByteSize(segment.dtype) == 2 ? PlainReduceIn<float>(segment, inputs)
                                      : PlainReduceIn<double>(segment, inputs);
}

// What a broadcast carries.
inline std::byte CollectiveByte(std::uint64_t seed, std::size_t number, std::size_t offset) {
  return static_cast<std::byte>(Mix(seed, number, offset) & 0xFF);
}

// Equal bytes, or NaN in both places: which NaN a sum of NaNs gives is not promised.
inline bool SameValues(DType dtype, const ByteVector& a, const ByteVector& b) {
  if (a == b) return true;
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size() / ByteSize(dtype); ++i) {
    const double x = GetElement(dtype, a, i);
    const double y = GetElement(dtype, b, i);
    if (x != y && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

}  // namespace gradwire::sim

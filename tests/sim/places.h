// The simulation's shared memory: contributions that lie in a member's gradients, and results that
// are written over them.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/sim/bytes.h"

namespace gradwire::sim {

// Gradients [offset, offset + bytes) of a bucket, as they came down a stream.
class GradientPlace final : public wire::Payload {
 public:
  GradientPlace(std::shared_ptr<ByteVector> memory, std::size_t offset, std::size_t bytes, int rank,
                std::uint64_t stream)
      : memory_(std::move(memory)),
        offset_(offset),
        piece_(std::span<const std::byte>(*memory_).subspan(offset, bytes)),
        rank_(rank),
        stream_(stream) {}

  std::span<const std::span<const std::byte>> pieces() const override { return {&piece_, 1}; }
  std::size_t bytes() const override { return piece_.size(); }
  bool fixed() const override { return false; }
  bool takes_result() const override { return true; }
  wire::PayloadRef Cut(std::size_t offset, std::size_t bytes) const override {
    return std::make_shared<GradientPlace>(memory_, offset_ + offset, bytes, rank_, stream_);
  }
  // The chunks of `next` follow this one's.
  wire::PayloadRef With(const GradientPlace& next) const {
    return std::make_shared<GradientPlace>(memory_, offset_, bytes() + next.bytes(), rank_,
                                           stream_);
  }

  std::span<std::byte> room() const { return std::span(*memory_).subspan(offset_, piece_.size()); }
  std::uint64_t offset() const { return offset_; }
  int rank() const { return rank_; }
  std::uint64_t stream() const { return stream_; }

 private:
  const std::shared_ptr<ByteVector> memory_;
  const std::size_t offset_;
  const std::span<const std::byte> piece_;
  const int rank_;
  const std::uint64_t stream_;
};

// Elements of one dtype as another, by the tests' own conversion.
inline void CastElements(DType from, std::span<const std::byte> in, DType to,
                         std::span<std::byte> out) {
  for (std::size_t i = 0; i < in.size() / ByteSize(from); ++i) {
    PutElement(to, out, i, GetElement(from, in, i));
  }
}

// A result. The daemon has its bytes unless every member has it in place.
class PlacedResult final : public wire::Payload {
 public:
  PlacedResult(ByteVector content, DType dtype, DType gradients,
               std::vector<std::shared_ptr<const GradientPlace>> places, bool keeps, Random& random)
      : content_(std::move(content)),
        dtype_(dtype),
        gradients_(gradients),
        places_(std::move(places)),
        kept_(keeps ? MakePayload(content_, random) : nullptr) {
    SetDigest(wire::Digest(wire::PayloadRef(MakePayload(content_, random)).get()));
    for (const auto& place : places_) CastElements(dtype_, content_, gradients_, place->room());
  }

  std::span<const std::span<const std::byte>> pieces() const override {
    return kept_ == nullptr ? std::span<const std::span<const std::byte>>() : kept_->pieces();
  }
  std::size_t bytes() const override { return content_.size(); }

  const ByteVector& content() const { return content_; }
  bool IsPlaced(int rank, std::uint64_t stream) const {
    const GradientPlace* place = PlaceOf(rank);
    return place != nullptr && place->stream() == stream;
  }
  // Still what was written there.
  bool IsIntact(int rank) const {
    ByteVector there(content_.size());
    CastElements(gradients_, PlaceOf(rank)->room(), dtype_, there);
    return SameValues(dtype_, there, content_);
  }
  // For a stream that does not know the place.
  wire::PayloadRef For(int rank, Random& random) const {
    if (kept_ != nullptr) return kept_;
    if (PlaceOf(rank) == nullptr) return nullptr;  // a sum without this rank: the checker sees it
    ByteVector copy(content_.size());
    CastElements(gradients_, PlaceOf(rank)->room(), dtype_, copy);
    return MakePayload(std::move(copy), random);
  }

 private:
  const GradientPlace* PlaceOf(int rank) const {
    for (const auto& place : places_) {
      if (place->rank() == rank) return place.get();
    }
    return nullptr;
  }

  const ByteVector content_;
  const DType dtype_;
  const DType gradients_;
  const std::vector<std::shared_ptr<const GradientPlace>> places_;
  const wire::PayloadRef kept_;
};

}  // namespace gradwire::sim

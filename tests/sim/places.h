// The simulation's shared memory: contributions that lie in a member's gradients, and results that
// are written over them.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "server/core/reduced_result.h"
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
        room_{.bytes = std::span(*memory_).subspan(offset, bytes), .rank = rank, .stream = stream} {
  }

  std::span<const std::span<const std::byte>> pieces() const override { return {&piece_, 1}; }
  std::size_t bytes() const override { return piece_.size(); }
  bool fixed() const override { return false; }
  const wire::ResultRoom* result_room() const override { return &room_; }
  wire::PayloadRef Cut(std::size_t offset, std::size_t bytes) const override {
    return std::make_shared<GradientPlace>(memory_, offset_ + offset, bytes, room_.rank,
                                           room_.stream);
  }
  // The chunks of `next` follow this one's.
  wire::PayloadRef With(const GradientPlace& next) const {
    return std::make_shared<GradientPlace>(memory_, offset_, bytes() + next.bytes(), room_.rank,
                                           room_.stream);
  }

  std::uint64_t offset() const { return offset_; }

 private:
  const std::shared_ptr<ByteVector> memory_;
  const std::size_t offset_;
  const std::span<const std::byte> piece_;
  const wire::ResultRoom room_;
};

// Elements of one dtype as another, by the tests' own conversion.
inline void CastElements(DType from, std::span<const std::byte> in, DType to,
                         std::span<std::byte> out) {
  for (std::size_t i = 0; i < in.size() / ByteSize(from); ++i) {
    PutElement(to, out, i, GetElement(from, in, i));
  }
}

// A result. The daemon has its bytes unless every member has it in place.
class PlacedResult final : public server::ReducedResult {
 public:
  PlacedResult(ByteVector content, DType dtype, DType gradients,
               std::vector<wire::PayloadRef> places, bool keeps, Random& random)
      : content_(std::move(content)),
        dtype_(dtype),
        gradients_(gradients),
        places_(std::move(places)),
        kept_(keeps ? MakePayload(content_, random) : nullptr),
        digest_(wire::Digest(MakePayload(content_, random).get())),
        random_(random) {
    for (const auto& place : places_) {
      CastElements(dtype_, content_, gradients_, place->result_room()->bytes);
    }
  }

  std::size_t bytes() const override { return content_.size(); }
  std::uint64_t digest() const override { return digest_; }
  wire::PayloadRef kept() const override { return kept_; }
  server::ResultDelivery DeliveryTo(const server::Receiver& to) const override {
    const wire::ResultRoom* room = RoomOf(to.rank);
    if (room != nullptr && room->stream == to.stream) return server::InPlace{};
    if (kept_ != nullptr) return server::InFrame{kept_};
    if (room == nullptr) return server::InFrame{};  // a sum without this rank: the checker sees it
    return server::ResentCopy{[room = *room, places = places_, gradients = gradients_,
                               dtype = dtype_, size = content_.size(), &random = random_] {
      ByteVector copy(size);
      CastElements(gradients, room.bytes, dtype, copy);
      return MakePayload(std::move(copy), random);
    }};
  }

  const ByteVector& content() const { return content_; }
  // Still what was written there.
  bool IsIntact(int rank) const {
    ByteVector there(content_.size());
    CastElements(gradients_, RoomOf(rank)->bytes, dtype_, there);
    return SameValues(dtype_, there, content_);
  }

 private:
  const wire::ResultRoom* RoomOf(int rank) const {
    for (const auto& place : places_) {
      if (place->result_room()->rank == rank) return place->result_room();
    }
    return nullptr;
  }

  const ByteVector content_;
  const DType dtype_;
  const DType gradients_;
  const std::vector<wire::PayloadRef> places_;
  const wire::PayloadRef kept_;
  const std::uint64_t digest_;
  Random& random_;
};

}  // namespace gradwire::sim

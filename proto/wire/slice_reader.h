// Reads protobuf's wire format from a message that lies in several slices.
#pragma once

#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradwire::wire {

enum class WireType : std::uint8_t {
  kVarint = 0,
  kFixed64 = 1,
  kLengthDelimited = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5,
};

struct Tag {
  std::uint32_t field = 0;
  WireType type = WireType::kVarint;
};

// The part of a message that is left to read. The slices must outlive it.
class SliceReader {
 public:
  explicit SliceReader(const std::vector<grpc::Slice>& slices);

  std::size_t position() const { return position_; }
  std::size_t remaining() const { return size_ - position_; }

  absl::StatusOr<Tag> ReadTag();

  // A length that is really there.
  absl::StatusOr<std::size_t> ReadLength();

  absl::StatusOr<std::uint64_t> ReadNumber();

  // What follows a tag that nobody is interested in, groups included.
  absl::Status SkipValue(Tag tag);

  // bytes <= remaining().
  void Skip(std::size_t bytes);
  void AppendTo(std::string& text, std::size_t bytes);

  // The next `bytes` if they lie in one slice, else empty. bytes <= remaining().
  std::span<const std::byte> Contiguous(std::size_t bytes) const;

 private:
  absl::StatusOr<std::uint64_t> ReadVarint(int max_bytes);
  absl::Status SkipScalar(WireType type);
  absl::Status CutShort(const std::string& what) const;

  std::span<const std::byte> current() const;

  const std::vector<grpc::Slice>& slices_;
  std::size_t size_ = 0;
  std::size_t position_ = 0;
  std::size_t slice_ = 0;   // of the next byte
  std::size_t offset_ = 0;  // in that slice; less than its size unless nothing is left
};

}  // namespace gradwire::wire

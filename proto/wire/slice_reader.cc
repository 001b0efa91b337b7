#include "proto/wire/slice_reader.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gradwire::wire {
namespace {

// Those of protobuf's own parser.
constexpr int kMaxTagBytes = 5;
constexpr int kMaxLengthBytes = 5;
constexpr int kMaxVarintBytes = 10;
constexpr std::size_t kMaxGroupDepth = 100;

}  // namespace

SliceReader::SliceReader(const std::vector<grpc::Slice>& slices) : slices_(slices) {
  for (const grpc::Slice& slice : slices) size_ += slice.size();
  // Passes over empty slices, so that current() has a byte while any is left.
  Skip(0);
}

std::span<const std::byte> SliceReader::current() const {
  if (slice_ == slices_.size()) return {};
  const grpc::Slice& slice = slices_[slice_];
  return std::as_bytes(std::span(slice.begin(), slice.size())).subspan(offset_);
}

void SliceReader::Skip(std::size_t bytes) {
  position_ += bytes;
  offset_ += bytes;
  while (slice_ < slices_.size() && offset_ >= slices_[slice_].size()) {
    offset_ -= slices_[slice_].size();
    ++slice_;
  }
}

void SliceReader::AppendTo(std::string& text, std::size_t bytes) {
  text.reserve(text.size() + bytes);
  while (bytes > 0) {
    const std::span<const std::byte> here = current().first(std::min(bytes, current().size()));
    text.append(reinterpret_cast<const char*>(here.data()), here.size());
    bytes -= here.size();
    Skip(here.size());
  }
}

std::span<const std::byte> SliceReader::Contiguous(std::size_t bytes) const {
  return current().size() < bytes ? std::span<const std::byte>() : current().first(bytes);
}

absl::StatusOr<std::uint64_t> SliceReader::ReadVarint(int max_bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < max_bytes; ++i) {
    if (remaining() == 0) return CutShort("a number");
    const auto byte = std::to_integer<std::uint64_t>(current().front());
    Skip(1);
    // Bits beyond 64 are dropped, as protobuf does.
    value |= (byte & 0x7f) << (7 * i);
    if (byte < 0x80) return value;
  }
  return absl::InvalidArgumentError(absl::StrCat("frame: the number before offset ", position_,
                                                 " is not complete after ", max_bytes,
                                                 " bytes; allowed: at most ", max_bytes));
}

absl::StatusOr<Tag> SliceReader::ReadTag() {
  const absl::StatusOr<std::uint64_t> value = ReadVarint(kMaxTagBytes);
  if (!value.ok()) return value.status();
  const auto type = static_cast<std::uint8_t>(*value & 7);
  const std::uint64_t field = *value >> 3;
  if (field == 0 || *value > std::numeric_limits<std::uint32_t>::max() || type > 5) {
    return absl::InvalidArgumentError(absl::StrCat(
        "frame: tag ", *value, " before offset ", position_,
        " is none; allowed: a field number from 1 to 536870911 and a wire type from 0 to 5"));
  }
  return Tag{static_cast<std::uint32_t>(field), static_cast<WireType>(type)};
}

absl::StatusOr<std::uint64_t> SliceReader::ReadNumber() { return ReadVarint(kMaxVarintBytes); }

absl::StatusOr<std::size_t> SliceReader::ReadLength() {
  const absl::StatusOr<std::uint64_t> length = ReadVarint(kMaxLengthBytes);
  if (!length.ok()) return length.status();
  // Checked here, so that no caller takes memory for bytes that did not come.
  if (*length > remaining()) {
    return absl::InvalidArgumentError(absl::StrCat("frame: length ", *length, " before offset ",
                                                   position_, "; allowed: at most the ",
                                                   remaining(), " bytes that follow"));
  }
  return static_cast<std::size_t>(*length);
}

absl::Status SliceReader::SkipScalar(WireType type) {
  if (type == WireType::kVarint) return ReadVarint(kMaxVarintBytes).status();
  if (type == WireType::kLengthDelimited) {
    const absl::StatusOr<std::size_t> length = ReadLength();
    if (length.ok()) Skip(*length);
    return length.status();
  }
  const std::size_t bytes = type == WireType::kFixed64 ? 8 : 4;
  if (remaining() < bytes) return CutShort("a number");
  Skip(bytes);
  return absl::OkStatus();
}

absl::Status SliceReader::SkipValue(Tag tag) {
  // A bounded stack and no recursion, because the sender decides how deep groups nest.
  std::vector<std::uint32_t> groups;
  while (true) {
    if (tag.type == WireType::kStartGroup) {
      if (groups.size() == kMaxGroupDepth) {
        return absl::InvalidArgumentError(absl::StrCat(
            "frame: more than ", kMaxGroupDepth, " groups inside each other before offset ",
            position_, "; allowed: at most ", kMaxGroupDepth));
      }
      groups.push_back(tag.field);
    } else if (tag.type == WireType::kEndGroup) {
      if (groups.empty() || groups.back() != tag.field) {
        return absl::InvalidArgumentError(absl::StrCat(
            "frame: group ", tag.field, " ends before offset ", position_, "; allowed: ",
            groups.empty() ? "no end, no group is open"
                           : absl::StrCat("the end of ", groups.back())));
      }
      groups.pop_back();
    } else if (absl::Status status = SkipScalar(tag.type); !status.ok()) {
      return status;
    }
    if (groups.empty()) return absl::OkStatus();
    const absl::StatusOr<Tag> next = ReadTag();
    if (!next.ok()) return next.status();
    tag = *next;
  }
}

absl::Status SliceReader::CutShort(const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat("frame: ", what,
                                                 " is cut short at its end, at offset ", position_,
                                                 "; allowed: a whole frame"));
}

}  // namespace gradwire::wire

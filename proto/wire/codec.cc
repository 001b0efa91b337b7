#include "proto/wire/codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpc/slice.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/bundle.h"
#include "proto/wire/owned_payload.h"
#include "proto/wire/proto_conversion.h"
#include "proto/wire/slice_reader.h"

namespace gradwire::wire {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr std::uint32_t kHeaderField = v1::Frame::kHeaderFieldNumber;
constexpr std::uint32_t kPayloadField = v1::Frame::kPayloadFieldNumber;
constexpr std::uint32_t kAfterField = v1::Frame::kAfterFieldNumber;
constexpr std::uint32_t kBundleField = v1::Frame::kBundleFieldNumber;
constexpr std::size_t kMaxTagsBytes = 64;
// If the average piece of a payload is smaller than this, one copy is cheaper than the bookkeeping.
constexpr std::size_t kMinPieceBytes = 512;

constexpr std::uint8_t TagByte(std::uint32_t field, WireType type = WireType::kLengthDelimited) {
  return static_cast<std::uint8_t>(field << 3 | static_cast<std::uint8_t>(type));
}

struct Extent {
  std::size_t begin = 0;
  std::size_t bytes = 0;
};

// A payload in the slices that gRPC received: references, no copy.
class ReceivedPayload final : public Payload {
 public:
  ReceivedPayload(std::vector<grpc::Slice> slices, Extent extent)
      : slices_(std::move(slices)), bytes_(extent.bytes) {
    // gRPC stores a small slice's bytes inside the slice object, so their addresses are valid only
    // after the slices were moved for the last time.
    pieces_.reserve(slices_.size());
    std::size_t left = extent.bytes;
    std::size_t skip = extent.begin;
    for (const grpc::Slice& slice : slices_) {
      const std::span<const std::byte> whole =
          std::as_bytes(std::span(slice.begin(), slice.size()));
      const std::span<const std::byte> rest = whole.subspan(std::min(skip, whole.size()));
      skip -= whole.size() - rest.size();
      const std::span<const std::byte> piece = rest.first(std::min(left, rest.size()));
      left -= piece.size();
      if (!piece.empty()) pieces_.push_back(piece);
    }
  }

  ReceivedPayload(const ReceivedPayload&) = delete;
  ReceivedPayload& operator=(const ReceivedPayload&) = delete;

  std::span<const std::span<const std::byte>> pieces() const override { return pieces_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<std::span<const std::byte>> pieces_;
  std::size_t bytes_;
};

// Drops the slices that do not overlap `extent`: a slice can pin a buffer much larger than itself.
Extent DropOthers(std::vector<grpc::Slice>& slices, Extent extent) {
  auto first = slices.begin();
  while (extent.begin >= first->size()) extent.begin -= (first++)->size();
  auto last = first;
  for (std::size_t covered = 0; covered < extent.begin + extent.bytes; ++last)
    covered += last->size();
  slices.erase(last, slices.end());
  slices.erase(slices.begin(), first);
  return extent;
}

std::vector<std::byte> Gather(const Payload& payload) {
  std::vector<std::byte> content;
  content.reserve(payload.bytes());
  for (const std::span<const std::byte>& piece : payload.pieces()) {
    content.insert(content.end(), piece.begin(), piece.end());
  }
  return content;
}

PayloadRef MakePayload(std::vector<grpc::Slice> slices, Extent extent) {
  if (extent.bytes == 0) return nullptr;
  extent = DropOthers(slices, extent);
  auto received = std::make_shared<const ReceivedPayload>(std::move(slices), extent);
  // A reference to a small payload would keep a whole read buffer of gRPC alive, so copy it.
  const bool small = extent.bytes <= kCopyBytes;
  if (small || received->pieces().size() > 2 + extent.bytes / kMinPieceBytes) {
    return OwnedPayload::Make(Gather(*received));
  }
  return received;
}

absl::Status TooLarge(const std::string& field, std::size_t bytes, std::size_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": has ", bytes, " bytes; allowed: at most ", limit));
}

// The header, merged from its occurrences as protobuf prescribes; usually there is one.
class HeaderReader {
 public:
  // Reads the reader's next `bytes` bytes.
  absl::Status Read(SliceReader& reader, std::size_t bytes, std::size_t limit) {
    // The limit holds for all occurrences together.
    if (bytes > limit - bytes_) return TooLarge("header", bytes_ + bytes, limit);
    bytes_ += bytes;
    const std::span<const std::byte> view = reader.Contiguous(bytes);
    if (view.size() == bytes) {
      reader.Skip(bytes);
      return Merge(view);
    }
    std::string gathered;
    reader.AppendTo(gathered, bytes);
    return Merge(std::as_bytes(std::span(gathered)));
  }

  absl::StatusOr<Header> Finish() const { return FromProto(message_); }

 private:
  absl::Status Merge(std::span<const std::byte> bytes) {
    CodedInputStream stream(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                            static_cast<int>(bytes.size()));
    if (message_.MergeFromCodedStream(&stream) && stream.ConsumedEntireMessage()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("header: its ", bytes.size(),
                                                   " bytes are not a gradwire.v1.Header; ",
                                                   "allowed: that message's encoding"));
  }

  v1::Header message_;
  std::size_t bytes_ = 0;
};

void DropReference(void* payload) { delete static_cast<PayloadRef*>(payload); }

std::size_t MostBytes(const ParseLimits& limits) {
  return limits.max_header_bytes + limits.max_payload_bytes + kMaxTagsBytes;
}

absl::StatusOr<std::vector<grpc::Slice>> SlicesOf(const grpc::ByteBuffer& bytes, std::size_t most) {
  if (bytes.Length() > most) return TooLarge("frame", bytes.Length(), most);
  std::vector<grpc::Slice> slices;
  if (bytes.Valid() && !bytes.Dump(&slices).ok()) {
    return absl::InvalidArgumentError(
        "frame: cannot be decompressed; allowed: uncompressed frames");
  }
  return slices;
}

// The slices of a part, which keep the memory of the whole.
std::vector<grpc::Slice> Sub(const std::vector<grpc::Slice>& slices, Extent extent) {
  std::vector<grpc::Slice> part;
  for (const grpc::Slice& slice : slices) {
    if (extent.bytes == 0) break;
    const std::size_t begin = std::min(extent.begin, slice.size());
    const std::size_t bytes = std::min(extent.bytes, slice.size() - begin);
    if (bytes > 0) part.push_back(slice.sub(begin, begin + bytes));
    extent.begin -= begin;
    extent.bytes -= bytes;
  }
  return part;
}

// `bundle`: gets the places of further frames. Null: there must be none.
absl::StatusOr<Frame> ParseSlices(std::vector<grpc::Slice> slices, const ParseLimits& limits,
                                  std::vector<Extent>* bundle) {
  SliceReader reader(slices);
  HeaderReader header_reader;
  Extent payload;
  std::uint64_t after = 0;
  while (reader.remaining() > 0) {
    const absl::StatusOr<Tag> tag = reader.ReadTag();
    if (!tag.ok()) return tag.status();
    if (tag->field == kAfterField && tag->type == WireType::kVarint) {
      const absl::StatusOr<std::uint64_t> number = reader.ReadNumber();
      if (!number.ok()) return number.status();
      after = *number;
      continue;
    }
    // Repeated fields follow protobuf: headers merge, and the last payload counts. Unknown fields
    // are skipped, so that later versions can add some.
    const bool bundled = tag->field == kBundleField;
    const bool known = tag->field == kHeaderField || tag->field == kPayloadField || bundled;
    if (!known || tag->type != WireType::kLengthDelimited) {
      if (absl::Status status = reader.SkipValue(*tag); !status.ok()) return status;
      continue;
    }
    const absl::StatusOr<std::size_t> length = reader.ReadLength();
    if (!length.ok()) return length.status();
    if (bundled && bundle == nullptr) {
      return absl::InvalidArgumentError("bundle: has frames; allowed: none in this frame");
    }
    if (bundled) {
      if (bundle->size() + 1 >= kMaxBundleFrames) {
        return absl::InvalidArgumentError(absl::StrCat(
            "bundle: has more than ", kMaxBundleFrames - 1, " frames, which is the limit"));
      }
      if (*length > MostBytes(limits)) return TooLarge("frame", *length, MostBytes(limits));
      bundle->push_back({.begin = reader.position(), .bytes = *length});
      reader.Skip(*length);
      continue;
    }
    if (tag->field == kHeaderField) {
      absl::Status status = header_reader.Read(reader, *length, limits.max_header_bytes);
      if (!status.ok()) return status;
      continue;
    }
    if (*length > limits.max_payload_bytes) {
      return TooLarge("payload", *length, limits.max_payload_bytes);
    }
    payload = {.begin = reader.position(), .bytes = *length};
    reader.Skip(*length);
  }
  absl::StatusOr<Header> header = header_reader.Finish();
  if (!header.ok()) return header.status();
  return Frame{*std::move(header), MakePayload(std::move(slices), payload), after};
}

}  // namespace

absl::StatusOr<Frame> Parse(const grpc::ByteBuffer& bytes, const ParseLimits& limits) {
  absl::StatusOr<std::vector<grpc::Slice>> slices = SlicesOf(bytes, MostBytes(limits));
  if (!slices.ok()) return slices.status();
  return ParseSlices(*std::move(slices), limits, nullptr);
}

absl::StatusOr<std::vector<Frame>> ParseBundle(const grpc::ByteBuffer& bytes,
                                               const ParseLimits& limits) {
  const absl::StatusOr<std::vector<grpc::Slice>> slices =
      SlicesOf(bytes, MostBytes(limits) + kMaxBundleBytes);
  if (!slices.ok()) return slices.status();
  std::vector<Extent> others;
  std::vector<Frame> frames;
  absl::StatusOr<Frame> frame = ParseSlices(*slices, limits, &others);
  if (!frame.ok()) return frame.status();
  frames.push_back(*std::move(frame));
  for (const Extent& other : others) {
    frame = ParseSlices(Sub(*slices, other), limits, nullptr);
    if (!frame.ok()) return frame.status();
    frames.push_back(*std::move(frame));
  }
  return frames;
}

grpc::ByteBuffer Bundle(std::vector<grpc::ByteBuffer> frames) {
  std::vector<grpc::Slice> slices;
  std::vector<grpc::Slice> own;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    if (i > 0) {
      std::array<std::uint8_t, 6> field{};  // a tag of 1 byte and a varint of at most 5
      field[0] = TagByte(kBundleField);
      const std::uint8_t* const end = CodedOutputStream::WriteVarint32ToArray(
          static_cast<std::uint32_t>(frames[i].Length()), &field[1]);
      slices.emplace_back(field.data(), static_cast<std::size_t>(end - field.data()));
    }
    if (!frames[i].Dump(&own).ok()) continue;  // nobody compressed it
    slices.insert(slices.end(), own.begin(), own.end());
  }
  return {slices.data(), slices.size()};
}

grpc::ByteBuffer Serialize(const Header& header, const PayloadRef& payload) {
  const v1::Header message = ToProto(header);
  const auto header_size = static_cast<std::uint32_t>(message.ByteSizeLong());
  const auto payload_size = static_cast<std::uint32_t>(payload == nullptr ? 0 : payload->bytes());
  const bool copies = payload_size <= kCopyBytes;
  std::size_t bytes = 1 + CodedOutputStream::VarintSize32(header_size) + header_size;
  if (payload_size > 0) bytes += 1 + CodedOutputStream::VarintSize32(payload_size);
  if (copies) bytes += payload_size;

  grpc_slice first = grpc_slice_malloc(bytes);
  std::uint8_t* at = GRPC_SLICE_START_PTR(first);
  *at++ = TagByte(kHeaderField);
  at = CodedOutputStream::WriteVarint32ToArray(header_size, at);
  at = message.SerializeWithCachedSizesToArray(at);
  std::vector<grpc::Slice> slices;
  if (payload_size > 0) {
    *at++ = TagByte(kPayloadField);
    at = CodedOutputStream::WriteVarint32ToArray(payload_size, at);
    for (const std::span<const std::byte>& piece : payload->pieces()) {
      if (copies)
        at = std::copy_n(reinterpret_cast<const std::uint8_t*>(piece.data()), piece.size(), at);
    }
  }
  slices.emplace_back(first, grpc::Slice::STEAL_REF);
  if (!copies) {
    for (const std::span<const std::byte>& piece : payload->pieces()) {
      // Each slice has a reference of its own, because gRPC drops them one by one.
      if (piece.empty()) continue;
      // gRPC's slices are of mutable bytes but it only reads what it sends.
      slices.emplace_back(const_cast<std::byte*>(piece.data()), piece.size(), &DropReference,
                          new PayloadRef(payload));
    }
  }
  return {slices.data(), slices.size()};
}

void PutAfter(grpc::ByteBuffer& frame, std::uint64_t after) {
  // In front, because protobuf allows any order and so the other slices stay as they are. A tag of
  // 1 byte and a varint of at most 10.
  std::array<std::uint8_t, 11> field{};
  field[0] = TagByte(kAfterField, WireType::kVarint);
  const std::uint8_t* const end = CodedOutputStream::WriteVarint64ToArray(after, &field[1]);
  std::vector<grpc::Slice> slices;
  if (!frame.Dump(&slices).ok()) return;  // nobody compressed it
  slices.emplace(slices.begin(), field.data(), static_cast<std::size_t>(end - field.data()));
  grpc::ByteBuffer whole(slices.data(), slices.size());
  frame.Swap(&whole);
}

}  // namespace gradwire::wire

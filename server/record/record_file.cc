#include "server/record/record_file.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/wire/digest.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kSizesBytes = 16;  // of the prefix, before the digest

void PutNumber(std::uint64_t value, std::size_t bytes, std::byte* out) {
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
}

std::uint64_t GetNumber(const std::byte* in, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value |= std::to_integer<std::uint64_t>(in[i]) << (8 * i);
  return value;
}

std::uint64_t DigestOfRecord(std::span<const std::byte> sizes, std::string_view head,
                             std::span<const std::byte> payload) {
  wire::Digester digester;
  digester.Update(sizes);
  digester.Update(std::as_bytes(std::span(head)));
  digester.Update(payload);
  return digester.Finish();
}

}  // namespace

std::string Name(RecordKind kind) {
  switch (kind) {
    case RecordKind::kStep:
      return "step";
    case RecordKind::kModel:
      return "model";
    case RecordKind::kBucket:
      return "bucket";
    case RecordKind::kReduction:
      return "reduction";
    case RecordKind::kEnd:
      return "end";
  }
  return absl::StrCat("kind ", static_cast<std::uint32_t>(kind));
}

std::array<std::byte, kRecordPrefixBytes> RecordPrefix(RecordKind kind, std::string_view head,
                                                       std::span<const std::byte> payload) {
  std::array<std::byte, kRecordPrefixBytes> prefix;
  PutNumber(static_cast<std::uint32_t>(kind), 4, prefix.data());
  PutNumber(head.size(), 4, prefix.data() + 4);
  PutNumber(payload.size(), 8, prefix.data() + 8);
  PutNumber(DigestOfRecord(std::span(prefix).first(kSizesBytes), head, payload), 8,
            prefix.data() + kSizesBytes);
  return prefix;
}

absl::Status MemorySource::Read(std::span<std::byte> out) {
  std::copy_n(rest_.begin(), out.size(), out.begin());
  rest_ = rest_.subspan(out.size());
  return absl::OkStatus();
}

absl::Status ReadMagic(RecordSource& source) {
  std::array<char, kRecordMagicBytes> magic{};
  if (source.left() >= magic.size()) {
    if (absl::Status read = source.Read(std::as_writable_bytes(std::span(magic))); !read.ok()) {
      return read;
    }
    if (std::equal(magic.begin(), magic.end(), kRecordMagic)) return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("is not a recording: it does not begin with \"", kRecordMagic, "\""));
}

absl::StatusOr<std::optional<Record>> ReadRecord(RecordSource& source) {
  if (source.left() == 0) return std::nullopt;
  std::array<std::byte, kRecordPrefixBytes> prefix{};
  if (source.left() < prefix.size()) {
    return absl::DataLossError(absl::StrCat("ends in a record's prefix, with ", source.left(),
                                            " of ", prefix.size(), " bytes"));
  }
  if (absl::Status read = source.Read(prefix); !read.ok()) return read;
  Record record;
  record.kind = static_cast<RecordKind>(GetNumber(prefix.data(), 4));
  const std::uint64_t head = GetNumber(prefix.data() + 4, 4);
  const std::uint64_t payload = GetNumber(prefix.data() + 8, 8);
  // Compared so that no sum can overflow.
  if (head > source.left() || payload > source.left() - head) {
    return absl::DataLossError(absl::StrCat("says that it has ", head, " and ", payload,
                                            " bytes; the file has ", source.left(), " left"));
  }
  record.head.resize(head);
  record.payload.resize(payload);
  if (absl::Status read = source.Read(std::as_writable_bytes(std::span(record.head))); !read.ok()) {
    return read;
  }
  if (absl::Status read = source.Read(record.payload); !read.ok()) return read;
  const std::uint64_t stated = GetNumber(prefix.data() + kSizesBytes, 8);
  const std::uint64_t actual =
      DigestOfRecord(std::span(prefix).first(kSizesBytes), record.head, record.payload);
  if (stated != actual) {
    return absl::DataLossError(absl::StrFormat(
        "is damaged: its checksum is 0x%016x, its bytes give 0x%016x", stated, actual));
  }
  return record;
}

}  // namespace gradwire::server

// A file with one step of a session: its records, and how they are read and written.
//
// The file is the 8 bytes "GWRECORD" and one record after another, all numbers little-endian:
//
//   kind u32 | bytes of the head u32 | bytes of the payload u64 | XXH3-64 u64 | head | payload
//
// The head is a message of record.proto, by the kind. The digest is of the 16 bytes before it, the
// head and the payload, so that damage is found before anything is read from the record. Records
// are written as the step goes on, so that no step has to fit into memory; a step that is not
// concluded leaves no file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gradwire::server {

enum class RecordKind : std::uint32_t {
  kStep = 1,
  kModel = 2,
  kBucket = 3,
  kReduction = 4,
  kEnd = 5,
};
// "end"; "kind 7".
std::string Name(RecordKind kind);

inline constexpr char kRecordMagic[] = "GWRECORD";
inline constexpr std::size_t kRecordMagicBytes = sizeof(kRecordMagic) - 1;
inline constexpr std::uint32_t kRecordVersion = 1;
inline constexpr std::size_t kRecordPrefixBytes = 24;

// What stands before a record's head and payload.
std::array<std::byte, kRecordPrefixBytes> RecordPrefix(RecordKind kind, std::string_view head,
                                                       std::span<const std::byte> payload);

struct Record {
  RecordKind kind = RecordKind::kStep;
  std::string head;
  std::vector<std::byte> payload;
};

// Where a file's bytes come from.
class RecordSource {
 public:
  virtual ~RecordSource() = default;
  // Bytes that have not been read.
  virtual std::uint64_t left() const = 0;
  // The next ones; no more than are left.
  virtual absl::Status Read(std::span<std::byte> out) = 0;
};

// Bytes in memory, which outlive it.
class MemorySource final : public RecordSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : rest_(bytes) {}
  std::uint64_t left() const override { return rest_.size(); }
  absl::Status Read(std::span<std::byte> out) override;

 private:
  std::span<const std::byte> rest_;
};

// DataLoss: the source does not begin as a recording does.
absl::Status ReadMagic(RecordSource& source);
// nullopt: there is none left. DataLoss: the bytes are no record, or they are damaged. Takes no
// memory for more than the source has.
absl::StatusOr<std::optional<Record>> ReadRecord(RecordSource& source);

}  // namespace gradwire::server

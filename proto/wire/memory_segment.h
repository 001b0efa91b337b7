// Memory that two processes on one host share: a memfd with a sealed size.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "proto/wire/frame.h"

namespace gradwire::wire {

// Payloads up to this size travel in their frames: finding them in another page costs more.
inline constexpr std::size_t kInlineBytes = std::size_t{8} << 10;

// Called before each piece of long work; an error ends the work and becomes its result.
using GoOn = absl::FunctionRef<absl::Status()>;
inline absl::Status AlwaysGoOn() { return absl::OkStatus(); }

// A mapping; unmapped with the last reference. Thread-safe.
//
// Another process may change the bytes of its segment at any time. So they are read once, never
// trusted to keep their value after a check, and never used as sizes or offsets.
class MemorySegment {
 public:
  enum class Others { kMayWrite, kMayRead };

  // New memory of this process: zero, and wholly there, so that no later touch can fail. `others`:
  // how a process that gets the descriptor can map it. ResourceExhausted names the call that failed
  // and the system's error.
  static absl::StatusOr<std::shared_ptr<MemorySegment>> Create(const std::string& name,
                                                               std::size_t bytes, Others others);

  // Another process's memory, for reading, and with kWriteToo for writing if its seals allow that.
  // InvalidArgument unless it is a memfd of ordinary pages that can neither shrink nor grow, has
  // from 1 to `max_bytes` bytes, and has them all. Seals stay with the memory, so that the
  // descriptor is closed: a segment costs this process a mapping and nothing else.
  // A gigabyte takes up to a second; `go_on` is asked every few milliseconds.
  enum class Access { kRead, kWriteToo };
  static absl::StatusOr<std::shared_ptr<MemorySegment>> Map(UniqueFd fd, std::size_t max_bytes,
                                                            Access access = Access::kRead,
                                                            GoOn go_on = AlwaysGoOn);

  ~MemorySegment();
  MemorySegment(const MemorySegment&) = delete;
  MemorySegment& operator=(const MemorySegment&) = delete;

  std::size_t bytes() const { return bytes_; }
  std::span<const std::byte> content() const { return {data_, bytes_}; }
  // Empty: it can only be read.
  std::span<std::byte> writable() { return {data_, may_write_ ? bytes_ : 0}; }
  // To be given to others; -1 in a segment that Map returned.
  int fd() const { return fd_.get(); }

  // Where this memory lies in the segment; none: it does not, or not wholly.
  std::optional<std::size_t> OffsetOf(std::span<const std::byte> memory) const;

 private:
  MemorySegment(UniqueFd fd, std::byte* data, std::size_t bytes, bool may_write);

  const UniqueFd fd_;
  std::byte* const data_;
  const std::size_t bytes_;
  const bool may_write_;
};

// A part of a segment as a payload, which keeps the segment mapped.
class SharedPayload final : public Payload {
 public:
  // `part` lies in the segment.
  SharedPayload(std::shared_ptr<const MemorySegment> segment, std::span<const std::byte> part)
      : segment_(std::move(segment)), part_(part) {}

  std::span<const std::span<const std::byte>> pieces() const override { return {&part_, 1}; }
  std::size_t bytes() const override { return part_.size(); }
  bool fixed() const override { return false; }

 private:
  const std::shared_ptr<const MemorySegment> segment_;
  const std::span<const std::byte> part_;
};

// Whether [offset, offset + bytes) is in the segment. InvalidArgument begins with `what`.
absl::Status CheckPart(const MemorySegment& segment, std::uint64_t offset, std::uint64_t bytes,
                       const std::string& what);

// [offset, offset + bytes) of the segment as a payload, or CheckPart's error.
absl::StatusOr<PayloadRef> PartOf(const std::shared_ptr<const MemorySegment>& segment,
                                  std::uint64_t offset, std::uint64_t bytes,
                                  const std::string& what);

}  // namespace gradwire::wire

// Where a session's recording goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "server/record/record_file.h"

namespace gradwire::server {

// A record on its way into a file.
struct OutgoingRecord {
  RecordKind kind = RecordKind::kStep;
  std::shared_ptr<const std::string> head;
  std::unique_ptr<std::byte[]> payload{};  // null: none
  std::size_t payload_bytes = 0;

  std::size_t bytes() const { return head->size() + payload_bytes; }
  std::span<const std::byte> content() const { return {payload.get(), payload_bytes}; }
};

// Thread-safe. No call waits for the disk: a step that does not fit is left out as a whole.
class RecordSink {
 public:
  using Ticket = std::uint64_t;  // of an open step

  virtual ~RecordSink() = default;

  // A session records into `folder`, which is its own, from now until EndSession.
  virtual void BeginSession(const std::string& folder) = 0;
  virtual void EndSession(const std::string& folder) = 0;

  // A step of a session, whose files are in `folder`.
  virtual Ticket Begin(const std::string& folder, std::int64_t step) = 0;
  // Whether a record of so many bytes will be taken; if not, the step is left out. Spares the copy.
  virtual bool HasRoom(Ticket ticket, std::size_t bytes) = 0;
  virtual void Add(Ticket ticket, OutgoingRecord record) = 0;
  // The step is concluded, or is not going to be.
  virtual void End(Ticket ticket) = 0;
  virtual void Drop(Ticket ticket) = 0;

  // Concluded steps that were left out.
  virtual std::uint64_t left_out() const = 0;
};

}  // namespace gradwire::server

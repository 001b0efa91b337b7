// The interface between a session and a member's stream.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/wire/lanes.h"

namespace gradwire::server {

class Outgoing;

// Thread-safe. The functions that queue and end only record what to do, so that a session can call
// them under its lock. Pump writes, and must be called without a lock.
class MemberStream {
 public:
  virtual ~MemberStream() = default;

  // Unique among the streams of the process; never 0.
  virtual std::uint64_t id() const = 0;

  // Queues a frame in the order of SendQueue. The frame is serialized when it is written. If the
  // queue is full, the stream ends.
  virtual void Queue(Outgoing frame) = 0;
  // Queues a heartbeat on each lane that has nothing else to send.
  virtual void QueueHeartbeats() = 0;
  virtual void EndAfterQueue(const absl::Status& status) = 0;
  virtual void Pump(wire::Lane lane) = 0;

  // Whether the member reads results in the session's shared memory.
  virtual bool shares_memory() const { return false; }
  // Whether it is on a unix socket of the daemon.
  virtual bool is_local() const { return false; }
};

}  // namespace gradwire::server

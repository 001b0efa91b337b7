// What a session needs of a member's stream.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/wire/lanes.h"

namespace gradwire::server {

class Outgoing;

// Thread-safe. What queues and ends only notes what to do, so that they can be called under a
// lock; Pump does it and must be called without one.
class MemberStream {
 public:
  virtual ~MemberStream() = default;

  // Unique among the streams of the process, not 0.
  virtual std::uint64_t id() const = 0;

  // In the order of SendQueue. The frame becomes bytes when it is written. One that finds the queue
  // full ends the stream.
  virtual void Queue(Outgoing frame) = 0;
  // On each lane that has nothing else to send.
  virtual void QueueHeartbeats() = 0;
  virtual void EndAfterQueue(const absl::Status& status) = 0;
  virtual void Pump(wire::Lane lane) = 0;

  // The member reads results in the session's shared memory.
  virtual bool shares_memory() const { return false; }
};

}  // namespace gradwire::server

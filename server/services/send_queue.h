// What waits for one member: frames by reference, in the order in which they will be written.
#pragma once

#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "proto/wire/lane_sender.h"
#include "server/core/queue_limits.h"
#include "server/session/outgoing.h"

namespace gradwire::server {

// Frames leave in the order of wire::LaneSender.
//
// Memory stays bounded although a member may read as slowly as it likes:
// * A frame becomes bytes, and a resent result a copy, only when it is taken, one frame for each
//   lane at a time. What waits is a header and a reference.
// * What the session keeps is in its reservation, however many queues refer to it: results until
//   all members acknowledged them, shared state until its bucket is over. A member that reads
//   slowly acknowledges late, so that the session sends it no more than its windows allow.
// * A member that acknowledges what it has not read makes the session let go of payloads that the
//   queue still holds. Those, and payloads that the session never kept, may have `max_bytes`; they
//   are counted again whenever a quarter of that was added.
// * `max_frames` bounds the headers. QueueLimits has the rule.
//
// Not thread-safe; never blocks and never copies a payload.
class SendQueue {
 public:
  using Limits = QueueLimits::Limits;
  using Ready = wire::LaneSender<Outgoing>::Ready;

  explicit SendQueue(const Limits& limits) : limits_(limits) {}

  // The member has two lanes; before the first frame.
  void UseBothLanes() { sender_ = wire::LaneSender<Outgoing>(true); }

  // ResourceExhausted: the member does not read. The frame was not added.
  absl::Status Add(Outgoing frame);
  // On each lane that has nothing else to send.
  void AddHeartbeats();

  // The frame to be written now; none: nothing waits, or Written is still to come.
  std::optional<Ready> Take(wire::Lane lane);
  void Written(wire::Lane lane) { sender_.Written(lane); }
  bool writing(wire::Lane lane) const { return sender_.writing(lane); }

  // Forgets what waits, and takes no more.
  void Drop();

 private:
  std::size_t CountOnlyQueued() const;

  QueueLimits limits_;
  wire::LaneSender<Outgoing> sender_{false};
};

}  // namespace gradwire::server

// The frames that wait for one member, by reference, in the order in which they will be written.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/lane_sender.h"
#include "server/core/queue_limits.h"
#include "server/session/outgoing.h"

namespace gradwire::server {

// Frames leave in the order of wire::LaneSender.
//
// Memory stays bounded even if a member reads slowly:
// * A frame is serialized, and a resent result copied, only when it is taken, one frame per lane at
//   a time. A waiting frame costs a header and a reference.
// * Payloads that the session keeps are part of its reservation, however many queues refer to them:
//   results until all members have acknowledged them, shared state until its bucket is over. A
//   member that reads slowly acknowledges late, so its window limits what the session sends.
// * If a member acknowledges results that it has not read, the session drops payloads that the
//   queue still holds. These, and payloads that the session never kept, may take `max_bytes` in
//   total; they are counted again whenever a quarter of that was added.
// * `max_frames` bounds the headers. QueueLimits has the rule.
//
// Not thread-safe; never blocks and never copies a payload.
class SendQueue {
 public:
  using Limits = QueueLimits::Limits;
  using Ready = wire::LaneSender<Outgoing>::Ready;

  explicit SendQueue(const Limits& limits) : limits_(limits) {}

  // The member has two lanes. Call it before the first frame.
  void UseBothLanes() { sender_ = wire::LaneSender<Outgoing>(true); }

  // Returns ResourceExhausted, and does not add the frame, if the member does not read.
  absl::Status Add(Outgoing frame);
  // On each lane that has nothing else to send.
  void AddHeartbeats();

  // Returns the next frames to write, which go in one message: none if nothing waits or the last
  // write is not done. `bytes`: what several may have together; 0: one frame.
  std::vector<Ready> Take(wire::Lane lane, std::size_t bytes = 0);
  void Written(wire::Lane lane) { sender_.Written(lane); }
  bool writing(wire::Lane lane) const { return sender_.writing(lane); }

  // Drops all frames, and accepts no more.
  void Drop();

 private:
  std::size_t CountOnlyQueued() const;

  QueueLimits limits_;
  wire::LaneSender<Outgoing> sender_{false};
};

}  // namespace gradwire::server

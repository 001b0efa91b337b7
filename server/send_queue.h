// What waits for one member: frames by reference, in the order in which they will be written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/status/status.h"
#include "proto/wire/lanes.h"
#include "server/outgoing.h"

namespace gradwire::server {

// Frames leave in the order in which they were added, but for small results (wire::MayPass) and
// what the member's two lanes allow (wire::LaneOrder).
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
// * `max_frames` bounds the headers.
//
// Not thread-safe; never blocks and never copies a payload.
class SendQueue {
 public:
  struct Limits {
    std::size_t max_bytes = 0;
    std::size_t max_frames = 0;
  };
  struct Ready {
    Outgoing frame;
    std::uint64_t after = 0;  // as in wire::Frame
  };

  explicit SendQueue(const Limits& limits) : limits_(limits) {}

  // The member has two lanes; before the first frame.
  void UseBothLanes() { both_lanes_ = true; }

  // ResourceExhausted: the member does not read. The frame was not added.
  absl::Status Add(Outgoing frame);
  // Has nothing to do with other frames.
  void AddHeartbeat(wire::Lane lane);

  std::optional<Ready> Take(wire::Lane lane);

  bool empty(wire::Lane lane) const { return waiting_[wire::Index(lane)].empty(); }
  void Clear();

 private:
  using Frames = std::deque<Ready>;

  std::size_t CountOnlyQueued() const;
  Frames& frames(wire::Lane lane) { return waiting_[wire::Index(lane)]; }

  const Limits limits_;
  bool both_lanes_ = false;
  std::array<Frames, wire::kLanes> waiting_;
  wire::LaneOrder order_;
  std::size_t held_bytes_ = 0;       // to which frames refer
  std::size_t uncounted_bytes_ = 0;  // added since the last count
};

}  // namespace gradwire::server

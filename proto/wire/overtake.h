// The names that server/ still uses for send_priority.h and lanes.h.
#pragma once

#include "proto/wire/frame_priority.h"
#include "proto/wire/lanes.h"

namespace gradwire::wire {

using Weight = SendPriority;
using LaneGate = ReorderGate;

inline SendPriority WeightOf(const Header& header, const Payload* payload) {
  return PriorityOf(header, payload);
}

template <typename Queue, typename PriorityOfElement>
typename Queue::iterator PlaceFor(Queue& queue, const SendPriority& late,
                                  PriorityOfElement priority_of) {
  return PlaceInQueue(queue, late, priority_of);
}

}  // namespace gradwire::wire

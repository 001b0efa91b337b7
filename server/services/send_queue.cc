#include "server/services/send_queue.h"

#include <utility>

#include "proto/wire/bundle.h"

namespace gradwire::server {

// Only bytes that nobody but a queue holds count against the limit. Counting them walks the queue,
// so QueueLimits asks for it rarely.
absl::Status SendQueue::Add(Outgoing frame) {
  absl::Status may = limits_.Add(sender_.size(), frame.held_bytes(), frame.only_queued(),
                                 [this] { return CountOnlyQueued(); });
  if (!may.ok()) return may;
  const wire::SendPriority priority = frame.priority();
  sender_.Queue(std::move(frame), priority);
  return absl::OkStatus();
}

void SendQueue::AddHeartbeats() { sender_.QueueHeartbeats(Outgoing(wire::Heartbeat{}, nullptr)); }

std::vector<SendQueue::Ready> SendQueue::Take(wire::Lane lane, std::size_t bytes) {
  std::vector<Ready> few = sender_.NextFew(
      lane, bytes, bytes == 0 ? 1 : wire::kMaxBundleFrames, [](const Outgoing& frame) {
        return wire::BundleBytes(frame.header(), frame.payload_bytes());
      });
  for (const Ready& ready : few) limits_.Taken(ready.item.held_bytes());
  return few;
}

void SendQueue::Drop() {
  sender_.Drop();
  limits_.Clear();
}

std::size_t SendQueue::CountOnlyQueued() const {
  std::size_t bytes = 0;
  sender_.ForEach([&bytes](const Outgoing& frame) {
    if (frame.only_queued()) bytes += frame.held_bytes();
  });
  return bytes;
}

}  // namespace gradwire::server

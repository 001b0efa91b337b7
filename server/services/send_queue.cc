#include "server/services/send_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::server {

absl::Status SendQueue::Add(Outgoing frame) {
  const std::size_t bytes = frame.held_bytes();
  if (sender_.size() >= limits_.max_frames) {
    return absl::ResourceExhaustedError(absl::StrCat("the member does not read: more than ",
                                                     limits_.max_frames, " frames wait for it"));
  }
  // Counting looks at every frame, so it is done only where the limit could be reached, and for
  // every so many bytes.
  uncounted_bytes_ += bytes;
  if (held_bytes_ + bytes > limits_.max_bytes && uncounted_bytes_ > limits_.max_bytes / 4) {
    uncounted_bytes_ = 0;
    if (CountOnlyQueued() + (frame.only_queued() ? bytes : 0) > limits_.max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("the member does not read: more than ",
                                                       limits_.max_bytes, " bytes wait for it"));
    }
  }
  held_bytes_ += bytes;
  const wire::SendPriority priority = frame.priority();
  sender_.Queue(std::move(frame), priority);
  return absl::OkStatus();
}

void SendQueue::AddHeartbeats() { sender_.QueueHeartbeats(Outgoing(wire::Heartbeat{}, nullptr)); }

std::optional<SendQueue::Ready> SendQueue::Take(wire::Lane lane) {
  std::optional<Ready> ready = sender_.Next(lane);
  if (ready) held_bytes_ -= ready->item.held_bytes();
  return ready;
}

void SendQueue::Drop() {
  sender_.Drop();
  held_bytes_ = 0;
}

std::size_t SendQueue::CountOnlyQueued() const {
  std::size_t bytes = 0;
  sender_.ForEach([&bytes](const Outgoing& frame) {
    if (frame.only_queued()) bytes += frame.held_bytes();
  });
  return bytes;
}

}  // namespace gradwire::server

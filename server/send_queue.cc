#include "server/send_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::server {

absl::Status SendQueue::Add(Outgoing frame) {
  const std::size_t bytes = frame.held_bytes();
  if (waiting_[0].size() + waiting_[1].size() >= limits_.max_frames) {
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
  wire::LaneOrder::Place place;
  if (both_lanes_) place = order_.Next(frame.weight());
  Frames& queue = frames(place.lane);
  const auto end = queue.end();
  const auto at = both_lanes_ ? end : wire::PlaceFor(queue, frame.weight(), [](const Ready& one) {
    return one.frame.weight();
  });
  held_bytes_ += bytes;
  queue.insert(at, Ready{.frame = std::move(frame), .after = place.after});
  return absl::OkStatus();
}

void SendQueue::AddHeartbeat(wire::Lane lane) {
  order_.Count(lane);
  frames(lane).push_back({.frame = Outgoing(wire::Heartbeat{}, nullptr)});
}

std::optional<SendQueue::Ready> SendQueue::Take(wire::Lane lane) {
  Frames& queue = frames(lane);
  if (queue.empty()) return std::nullopt;
  std::optional<Ready> ready = std::move(queue.front());
  queue.pop_front();
  held_bytes_ -= ready->frame.held_bytes();
  return ready;
}

void SendQueue::Clear() {
  for (Frames& queue : waiting_) queue.clear();
  held_bytes_ = 0;
}

std::size_t SendQueue::CountOnlyQueued() const {
  std::size_t bytes = 0;
  for (const Frames& queue : waiting_) {
    for (const Ready& one : queue) {
      if (one.frame.only_queued()) bytes += one.frame.held_bytes();
    }
  }
  return bytes;
}

}  // namespace gradwire::server

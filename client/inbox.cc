#include "client/inbox.h"

#include <utility>

namespace gradwire::client {

void Inbox::Push(Event event) {
  MutexLock lock(mutex_);
  events_.emplace_back(std::move(event));
  condition_.NotifyOne();
}

bool Inbox::PushFrame(absl::StatusOr<wire::Frame> frame) {
  MutexLock lock(mutex_);
  last_heard_ = Clock::now();
  events_.emplace_back(FrameEvent{std::move(frame)});
  ++frames_;
  paused_ = frames_ >= max_frames_;
  condition_.NotifyOne();
  return !paused_;
}

Inbox::Popped Inbox::Pop(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  while (events_.empty()) {
    if (!condition_.WaitUntil(mutex_, deadline) && events_.empty()) return {};
  }
  Popped popped{.event = std::move(events_.front()), .read_on = false};
  events_.pop_front();
  if (std::holds_alternative<FrameEvent>(*popped.event)) --frames_;
  if (paused_ && frames_ <= max_frames_ / 2) {
    paused_ = false;
    popped.read_on = true;
  }
  return popped;
}

Clock::time_point Inbox::last_heard() const {
  MutexLock lock(mutex_);
  return last_heard_;
}

}  // namespace gradwire::client

// Recording of a session's steps.
#include <memory>

#include "server/session/session_runner.h"

namespace gradwire::server {

absl::StatusOr<std::uint64_t> SessionRunner::BeginTimeline(int steps, absl::Time deadline,
                                                           absl::Time now) {
  MutexLock lock(mutex_);
  absl::Status begun = core_.BeginTimeline(steps, deadline, now);
  if (!begun.ok()) return begun;
  return ++timelines_;
}

std::unique_ptr<StepTimeline> SessionRunner::TakeTimeline(std::uint64_t number) {
  MutexLock lock(mutex_);
  if (number != timelines_ || core_.timeline() == nullptr) return nullptr;
  const bool goes_on = core_.timeline()->state() == StepTimeline::State::kRecording;
  return goes_on && !IsEnd(core_.state()) ? nullptr : core_.TakeTimeline();
}

// Freed without the lock.
void SessionRunner::DropTimeline(std::uint64_t number) {
  std::unique_ptr<StepTimeline> dropped;
  MutexLock lock(mutex_);
  if (number == timelines_) dropped = core_.TakeTimeline();
}

}  // namespace gradwire::server

// What a member does after work of its device, in order: frames that carry what the device wrote,
// and completions that give memory back.
//
// Not thread-safe. Actions run inside the calls, and may call the queue.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "hooks/device.h"

namespace gradwire::client {

class DeviceQueue {
 public:
  using Clock = std::chrono::steady_clock;

  // `limit`: within this time the device has done what an action waits for. `device` outlives the
  // queue.
  DeviceQueue(Device& device, Clock::duration limit) : device_(device), limit_(limit) {}

  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  bool empty() const { return waiting_.empty(); }

  // Runs `action` after all earlier actions, and once the device has done everything that it was
  // given so far. The host's device always has: then this is a plain call.
  template <class Action>
  void AfterDevice(Action&& action) {
    const DeviceMark mark = device_.Record();
    if (empty() && IsDone(mark)) return action();
    waiting_.push_back({mark, Clock::now(), std::forward<Action>(action)});
  }

  // Runs `action` after all earlier actions.
  template <class Action>
  void InOrder(Action&& action) {
    if (empty()) return action();
    waiting_.push_back({waiting_.back().mark, Clock::now(), std::forward<Action>(action)});
  }

  // Runs the actions that are due. Returns an error if the device has failed, or did not get on
  // within the limit (DeadlineExceeded); then it has run all actions.
  absl::Status Poll(Clock::time_point now);

 private:
  struct Waiting {
    DeviceMark mark = 0;
    Clock::time_point since;
    std::function<void()> action;
  };

  void RunFirst();
  bool IsDone(DeviceMark mark) { return gave_up_ || device_.IsComplete(mark); }

  Device& device_;
  const Clock::duration limit_;
  std::deque<Waiting> waiting_;
  bool gave_up_ = false;  // the device was late once: nothing waits for it any more
};

}  // namespace gradwire::client

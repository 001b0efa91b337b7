// Calls that wait for the gradients: a program calls AllReduce when the work that computes them is
// in its CUDA stream, which may be long before the GPU has done it. They and the calls after them
// begin in the order in which they were made.
//
// Not thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "hooks/device.h"

namespace gradwire::client {

class DeviceCalls {
 public:
  using Clock = std::chrono::steady_clock;

  // `limit`: within this time gradients have to be there.
  explicit DeviceCalls(Clock::duration limit) : limit_(limit) {}

  bool empty() const { return waiting_.empty(); }

  // `ready` null: waits for earlier calls only.
  void Add(std::unique_ptr<DeviceEvent> ready, std::function<void()> call) {
    waiting_.push_back({std::move(ready), Clock::now(), std::move(call)});
  }

  // Runs the calls that are due. Returns an error if the GPU has failed, or the first gradients
  // that are not there are late (DeadlineExceeded).
  absl::Status Poll(Clock::time_point now);

  // Runs all calls, whether their gradients are there or not: after the session has failed.
  void RunAll();

 private:
  struct Waiting {
    std::unique_ptr<DeviceEvent> ready;
    Clock::time_point since;
    std::function<void()> call;
  };

  void RunFirst();

  const Clock::duration limit_;
  std::deque<Waiting> waiting_;
};

}  // namespace gradwire::client

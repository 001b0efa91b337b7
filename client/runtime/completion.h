// The state that copies of a Completion share: one outcome, set once.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/sync.h"
#include "client/transport/poller.h"
#include "gradwire/client.h"

namespace gradwire {
namespace client {

// A moment that the clock can express, for any timeout.
std::chrono::steady_clock::time_point DeadlineAfter(absl::Duration timeout);

class Outcome {
 public:
  Outcome() = default;
  ~Outcome();

  Outcome(const Outcome&) = delete;
  Outcome& operator=(const Outcome&) = delete;

  // For a call that has begun and whose frames the poller reads. `light`: its results are small, so
  // a thread that waits for it may poll for them.
  void ReadBy(std::shared_ptr<Poller> poller, bool light) GRADWIRE_EXCLUDES(mutex_);

  // Only the first call has an effect; it runs the callbacks on this thread. The caller holds a
  // reference.
  void Complete(const absl::Status& status);

  bool done() const;
  // No thread waits for it, or not for long: the poller's own thread takes over.
  void ReadNow() const GRADWIRE_EXCLUDES(mutex_);
  absl::Status Wait() const;
  absl::Status WaitUntil(std::chrono::steady_clock::time_point deadline) const;
  void OnDone(std::function<void(const absl::Status&)> callback);

 private:
  // Polls for frames on this thread while that is useful (Poller::PollWhileWaiting).
  void PollWhileWaiting(std::chrono::steady_clock::time_point deadline) const
      GRADWIRE_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  mutable CondVar condition_;
  bool done_ GRADWIRE_GUARDED_BY(mutex_) = false;
  absl::Status status_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<std::function<void(const absl::Status&)>> callbacks_ GRADWIRE_GUARDED_BY(mutex_);
  std::shared_ptr<Poller> poller_ GRADWIRE_GUARDED_BY(mutex_);  // until it is done
  bool light_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point begun_ GRADWIRE_GUARDED_BY(mutex_);
  mutable std::thread::id polling_thread_
      GRADWIRE_GUARDED_BY(mutex_);  // the thread in PollWhileWaiting, if any
};

}  // namespace client

struct Completion::State : client::Outcome {};

}  // namespace gradwire

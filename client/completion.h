// What a Completion's copies share: one outcome, set once.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "client/poller.h"
#include "gradwire/client.h"
#include "proto/wire/sync.h"

namespace gradwire {
namespace client {

class Outcome {
 public:
  Outcome() = default;
  // Of a call whose frames the poller reads. `light`: what is left to do when its last frame is
  // here is little, so that the thread that waits may read it.
  Outcome(std::shared_ptr<Poller> poller, bool light) : poller_(std::move(poller)), light_(light) {
    poller_->CallBegins(/*may_help=*/light);
  }
  ~Outcome();

  Outcome(const Outcome&) = delete;
  Outcome& operator=(const Outcome&) = delete;

  // The first call counts; it runs the callbacks on this thread.
  void Complete(const absl::Status& status);

  bool done() const;
  absl::Status Wait() const;
  absl::Status WaitUntil(std::chrono::steady_clock::time_point deadline) const;
  void OnDone(std::function<void(const absl::Status&)> callback);

 private:
  // Reads frames for as long as that helps.
  void Help(std::chrono::steady_clock::time_point deadline) const GRADWIRE_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  mutable CondVar condition_;
  bool done_ GRADWIRE_GUARDED_BY(mutex_) = false;
  absl::Status status_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<std::function<void(const absl::Status&)>> callbacks_ GRADWIRE_GUARDED_BY(mutex_);
  std::shared_ptr<Poller> poller_ GRADWIRE_GUARDED_BY(mutex_);  // until it is done
  bool light_ = false;
  mutable std::thread::id helper_ GRADWIRE_GUARDED_BY(mutex_);  // the thread in Help, if any
};

}  // namespace client

struct Completion::State : client::Outcome {
  using client::Outcome::Outcome;
};

}  // namespace gradwire

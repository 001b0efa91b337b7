// What a Completion's copies share: one outcome, set once.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "gradwire/client.h"
#include "proto/wire/sync.h"

namespace gradwire {
namespace client {

class Outcome {
 public:
  // The first call counts; it runs the callbacks on this thread.
  void Complete(const absl::Status& status);

  bool done() const;
  absl::Status Wait() const;
  absl::Status WaitUntil(std::chrono::steady_clock::time_point deadline) const;
  void OnDone(std::function<void(const absl::Status&)> callback);

 private:
  mutable Mutex mutex_;
  mutable CondVar condition_;
  bool done_ GRADWIRE_GUARDED_BY(mutex_) = false;
  absl::Status status_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<std::function<void(const absl::Status&)>> callbacks_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace client

struct Completion::State : client::Outcome {};

}  // namespace gradwire

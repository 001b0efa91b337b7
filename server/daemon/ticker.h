// A thread that does something at equal intervals.
#pragma once

#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "base/sync.h"
#include "server/rpc/clock.h"  // `now` is MonotonicNow(), for those who compare it

namespace gradwire::server {

// Thread-safe. `tick` runs on the ticker's own thread, first at once; the next call comes an
// interval after the last one has ended.
class Ticker {
 public:
  Ticker(absl::Duration interval, std::function<void(absl::Time now)> tick);
  ~Ticker() { Stop(); }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  // Returns when no call is running and none will follow. Not from within `tick`.
  void Stop() GRADWIRE_EXCLUDES(mutex_);

 private:
  void Loop() GRADWIRE_EXCLUDES(mutex_);

  const absl::Duration interval_;
  const std::function<void(absl::Time now)> tick_;
  Mutex mutex_;
  CondVar changed_;
  bool stopped_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gradwire::server

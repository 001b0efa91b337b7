#include "server/daemon/ticker.h"

#include <chrono>
#include <utility>

#include "base/thread_name.h"

namespace gradwire::server {

Ticker::Ticker(absl::Duration interval, std::function<void(absl::Time now)> tick)
    : interval_(interval), tick_(std::move(tick)), thread_([this] {
        NameThread("gradwire-tick");
        Loop();
      }) {}

void Ticker::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void Ticker::Loop() {
  while (true) {
    tick_(MonotonicNow());
    // Counted from the end of the tick, so that a late tick is not followed by several at once.
    const auto wake = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(interval_);
    MutexLock lock(mutex_);
    while (!stopped_ && changed_.WaitUntil(mutex_, wake)) {
    }
    if (stopped_) return;
  }
}

}  // namespace gradwire::server

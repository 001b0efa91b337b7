// How many chunks of a round a member sends beyond the results that it has: at most as many as the
// session allows, and fewer where more would only wait in queues on the way.
//
// On a slow link the windows of all connections together exceed what routers can queue: packets are
// lost, and links idle until TCP has sent them again. What a chunk takes from contribution to
// result, beyond the shortest such time, is its wait in queues. Divided by the chunks that were on
// their way, it is what the link needs for each of them; the window is as many as fit into a
// target. Waiting for a slower member looks the same, so a single long wait counts little.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/sync.h"
#include "proto/wire/frame.h"

namespace gradwire::client {

// One for all daemons of a session, since with different windows some shards would fall behind
// others, and links would be idle while the last one finishes. Thread-safe.
class SendWindow {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = TimePoint::duration;

  // Routers queue about 100 ms. Contributions and results each pass through such a queue, and a
  // part of the wait is for other members.
  static constexpr Duration kTarget = std::chrono::milliseconds(150);
  // One chunk is on its way while another one's result is.
  static constexpr std::uint32_t kLeast = 2;

  // For a daemon that allows `most`, at least 1.
  std::uint32_t Chunks(std::uint32_t most) const;
  // A chunk that filled a window of so many waited for so long.
  void Add(Duration waited, std::uint32_t chunks);

 private:
  mutable Mutex mutex_;
  // A mean in which older times count ever less; before the first one, none.
  std::optional<double> seconds_per_chunk_ GRADWIRE_GUARDED_BY(mutex_);
};

// The times of one connection's chunks, of which it measures one at a time. Has no clock. Not
// thread-safe.
class ChunkTimes {
 public:
  using TimePoint = SendWindow::TimePoint;
  using Duration = SendWindow::Duration;

  // Times after which the least one is forgotten, once or twice as many: routes change.
  static constexpr int kMemory = 256;

  ChunkTimes(std::shared_ptr<SendWindow> window, std::uint32_t most)
      : window_(std::move(window)), most_(most) {}

  // The window of a round.
  std::uint32_t chunks() const { return window_->Chunks(most_); }

  // A contribution was handed to the connection.
  void Sent(const wire::Contribution& contribution, TimePoint now);
  // A result came.
  void Received(const wire::Result& result, TimePoint now);
  // Another stream, to this daemon or another one: a chunk in flight may never come back.
  void Reset();

 private:
  struct Measured {
    wire::RoundId id;
    std::uint32_t chunk = 0;
    TimePoint sent;
    std::uint32_t fills = 0;  // chunks on their way, if no more could follow; 0: more could
  };

  const std::shared_ptr<SendWindow> window_;
  const std::uint32_t most_;
  std::optional<Measured> measured_;
  Duration least_ = Duration::max();
  Duration least_before_ = Duration::max();  // of the kMemory times before
  int times_ = 0;                            // since then
};

}  // namespace gradwire::client

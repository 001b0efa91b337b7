// What a process still has to send on one connection: the queues of its lanes.
//
// The owner queues items and writes them, one write at a time on each lane: Next gives what goes
// next, Written says that the write has ended. With one lane, items leave in the order of
// GoesBefore. With two, LaneOrder chooses the lane, and each keeps the order in which items came:
// to change it would change what `Frame.after` counts.
//
// An item is whatever the owner makes a frame of; only its priority and its bytes are known here.
// Knows no gRPC and no clock. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "proto/wire/lanes.h"

namespace gradwire::wire {

template <typename Item>
class LaneSender {
 public:
  struct Outgoing {
    Item item;
    std::uint64_t after = 0;  // Frame.after
  };
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

  // Takes nothing: there is no connection.
  LaneSender() = default;
  // Of a connection. `paired`: it has two lanes. At most `max_bytes` wait.
  explicit LaneSender(bool paired, std::size_t max_bytes = kNoLimit)
      : open_(true), paired_(paired), max_bytes_(max_bytes) {}

  bool open() const { return open_; }
  bool paired() const { return paired_; }
  std::size_t queued_bytes() const { return queued_bytes_; }  // of both lanes
  bool empty(Lane lane) const { return At(lane).items.empty(); }
  bool writing(Lane lane) const { return At(lane).writing; }

  // The first item of each lane. The lanes do not count it.
  void QueueHello(const Item& hello, std::size_t bytes);

  // False: more than `max_bytes` would wait, and the item is dropped. While not open() items are
  // dropped too, but that is no failure: the owner knows.
  bool Queue(Item item, const SendPriority& priority, std::size_t bytes);

  // `join(last)` may make the main lane's last item, which is not on its way yet, say what another
  // one says as well, and returns whether it did. That one needs no Queue then.
  template <typename Join>
  bool JoinLast(Join join) {
    std::deque<Waiting>& items = At(Lane::kMain).items;
    return open_ && !items.empty() && join(items.back().item);
  }

  // A heartbeat on each lane that is idle: with nothing queued and nothing on its way, since any
  // other frame says as well that this side lives. It counts as a frame of its lane: the receiver
  // numbers frames as they come, and need not look into them.
  void QueueHeartbeats(const Item& heartbeat, std::size_t bytes);

  // What goes onto the lane now; none: nothing waits, or a write is on its way.
  std::optional<Outgoing> Next(Lane lane);
  void Written(Lane lane) { At(lane).writing = false; }

  // Nothing more is queued; what waits still leaves.
  void Close() { open_ = false; }
  // The connection is broken: nothing leaves any more. What matters is said again on the next one.
  void Drop();

 private:
  struct Waiting {
    Item item;
    SendPriority priority;
    std::uint64_t after = 0;
    std::size_t bytes = 0;
  };
  struct Way {
    std::deque<Waiting> items;
    bool writing = false;
  };

  Way& At(Lane lane) { return ways_[Index(lane)]; }
  const Way& At(Lane lane) const { return ways_[Index(lane)]; }
  bool has(Lane lane) const { return lane == Lane::kMain || paired_; }

  bool open_ = false;
  bool paired_ = false;
  std::size_t max_bytes_ = kNoLimit;
  std::size_t queued_bytes_ = 0;
  LaneOrder order_;  // where there are two lanes
  std::array<Way, kLanes> ways_;
};

template <typename Item>
void LaneSender<Item>::QueueHello(const Item& hello, std::size_t bytes) {
  for (const Lane lane : kAllLanes) {
    if (!has(lane)) continue;
    At(lane).items.push_back({.item = hello, .priority = {}, .bytes = bytes});
    queued_bytes_ += bytes;
  }
}

template <typename Item>
bool LaneSender<Item>::Queue(Item item, const SendPriority& priority, std::size_t bytes) {
  if (!open_) return true;
  if (bytes > max_bytes_ || queued_bytes_ > max_bytes_ - bytes) return false;
  queued_bytes_ += bytes;
  if (paired_) {
    const LaneOrder::Place place = order_.Next(priority);
    At(place.lane).items.push_back({std::move(item), priority, place.after, bytes});
    return true;
  }
  std::deque<Waiting>& items = At(Lane::kMain).items;
  const auto at =
      PlaceInQueue(items, priority, [](const Waiting& waiting) { return waiting.priority; });
  items.insert(at, {std::move(item), priority, 0, bytes});
  return true;
}

template <typename Item>
void LaneSender<Item>::QueueHeartbeats(const Item& heartbeat, std::size_t bytes) {
  if (!open_) return;
  for (const Lane lane : kAllLanes) {
    if (!has(lane) || writing(lane) || !empty(lane)) continue;
    order_.Count(lane);
    At(lane).items.push_back({.item = heartbeat, .priority = {}, .bytes = bytes});
    queued_bytes_ += bytes;
  }
}

template <typename Item>
std::optional<typename LaneSender<Item>::Outgoing> LaneSender<Item>::Next(Lane lane) {
  Way& way = At(lane);
  if (way.writing || way.items.empty()) return std::nullopt;
  Waiting& first = way.items.front();
  Outgoing next{std::move(first.item), first.after};
  queued_bytes_ -= first.bytes;
  way.items.pop_front();
  way.writing = true;
  return next;
}

template <typename Item>
void LaneSender<Item>::Drop() {
  Close();
  for (Way& way : ways_) way.items.clear();
  queued_bytes_ = 0;
}

}  // namespace gradwire::wire

// The sending side of one connection: the queues of its lanes.
//
// The owner queues items and writes them, one write at a time on each lane: Next returns the next
// item, and Written reports that the write has ended. With one lane, items leave in the order of
// GoesBefore. With two, LaneOrder chooses the lane, and each lane keeps the order in which items
// were queued, because another order would change what `Frame.after` counts.
//
// An item is anything that the owner can turn into a frame; only its priority is known here. The
// owner limits the queue, because it knows what items hold; size() and ForEach are for that. Knows
// no gRPC and no clock. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "proto/wire/lanes.h"

namespace gradwire::wire {

template <typename Item>
class LaneSender {
 public:
  struct Ready {
    Item item;
    std::uint64_t after = 0;  // Frame.after
  };

  // Takes nothing: there is no connection.
  LaneSender() = default;
  // Of a connection. `paired`: it has two lanes.
  explicit LaneSender(bool paired) : open_(true), paired_(paired) {}

  bool open() const { return open_; }
  bool paired() const { return paired_; }
  std::size_t size() const { return ways_[0].items.size() + ways_[1].items.size(); }
  bool empty(Lane lane) const { return At(lane).items.empty(); }
  bool writing(Lane lane) const { return At(lane).writing; }

  // visit(item), of what waits.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const Way& way : ways_) {
      for (const Waiting& waiting : way.items) visit(waiting.item);
    }
  }

  // The first item of each lane. The lanes do not count it.
  void QueueHello(const Item& hello);

  // While not open() the item is dropped.
  void Queue(Item item, const SendPriority& priority);

  // `join(last)` may make the main lane's last item, which is not on its way yet, say what another
  // one says as well, and returns whether it did. That one needs no Queue then.
  template <typename Join>
  bool JoinLast(Join join) {
    std::deque<Waiting>& items = At(Lane::kMain).items;
    return open_ && !items.empty() && join(items.back().item);
  }

  // Queues a heartbeat on each idle lane (nothing queued or in flight), because any other frame
  // also shows that this side is alive. A heartbeat counts as a frame of its lane: the receiver
  // numbers frames as they arrive, without looking into them.
  void QueueHeartbeats(const Item& heartbeat);

  // The next item of the lane; none: nothing waits, or a write is in flight.
  std::optional<Ready> Next(Lane lane);
  // As Next: up to `most` items of `bytes` together, by size_of(item). The first may be larger.
  template <typename SizeOf>
  std::vector<Ready> NextFew(Lane lane, std::size_t bytes, std::size_t most, SizeOf size_of);
  void Written(Lane lane) { At(lane).writing = false; }

  // Accepts no more items; those that wait still leave.
  void Close() { open_ = false; }
  // The connection is broken: nothing leaves any more. The next connection repeats what matters.
  void Drop();
  // The same, but for this item, which may overtake all others.
  void DropFor(Item last, const SendPriority& priority);

 private:
  struct Waiting {
    Item item;
    SendPriority priority;
    std::uint64_t after = 0;
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
  LaneOrder order_;  // where there are two lanes
  std::array<Way, kLanes> ways_;
};

template <typename Item>
void LaneSender<Item>::QueueHello(const Item& hello) {
  for (const Lane lane : kAllLanes) {
    if (has(lane)) At(lane).items.push_back({.item = hello, .priority = {}});
  }
}

template <typename Item>
void LaneSender<Item>::Queue(Item item, const SendPriority& priority) {
  if (!open_) return;
  if (paired_) {
    const LaneOrder::Place place = order_.Next(priority);
    At(place.lane).items.push_back({std::move(item), priority, place.after});
    return;
  }
  std::deque<Waiting>& items = At(Lane::kMain).items;
  const auto at =
      PlaceInQueue(items, priority, [](const Waiting& waiting) { return waiting.priority; });
  items.insert(at, {std::move(item), priority});
}

template <typename Item>
void LaneSender<Item>::QueueHeartbeats(const Item& heartbeat) {
  if (!open_) return;
  for (const Lane lane : kAllLanes) {
    if (!has(lane) || writing(lane) || !empty(lane)) continue;
    order_.Count(lane);
    At(lane).items.push_back({.item = heartbeat, .priority = {}});
  }
}

template <typename Item>
std::optional<typename LaneSender<Item>::Ready> LaneSender<Item>::Next(Lane lane) {
  Way& way = At(lane);
  if (way.writing || way.items.empty()) return std::nullopt;
  Waiting& first = way.items.front();
  Ready next{std::move(first.item), first.after};
  way.items.pop_front();
  way.writing = true;
  return next;
}

template <typename Item>
template <typename SizeOf>
std::vector<typename LaneSender<Item>::Ready> LaneSender<Item>::NextFew(Lane lane,
                                                                        std::size_t bytes,
                                                                        std::size_t most,
                                                                        SizeOf size_of) {
  std::vector<Ready> few;
  std::optional<Ready> first = Next(lane);
  if (!first) return few;
  std::size_t taken = size_of(first->item);
  few.push_back(*std::move(first));
  std::deque<Waiting>& items = At(lane).items;
  while (few.size() < most && !items.empty()) {
    taken += size_of(items.front().item);
    if (taken > bytes) break;
    few.push_back({std::move(items.front().item), items.front().after});
    items.pop_front();
  }
  return few;
}

template <typename Item>
void LaneSender<Item>::DropFor(Item last, const SendPriority& priority) {
  for (Way& way : ways_) way.items.clear();
  Queue(std::move(last), priority);
  Close();
}

template <typename Item>
void LaneSender<Item>::Drop() {
  Close();
  for (Way& way : ways_) way.items.clear();
}

}  // namespace gradwire::wire

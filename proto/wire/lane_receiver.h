// The receiving side of one connection: orders the frames of its lanes as the sender requires, and
// tracks how long each lane has been silent.
//
// The owner reads one frame at a time on each lane. Arrive returns the frame if it may be handled
// now; the owner handles it and calls Taken, which may release a waiting frame of the other lane. A
// frame that Arrive keeps blocks its lane: nothing more is read from it until Taken returns that
// frame.
//
// It reads no clock; the owner passes times of its type `Time`. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "proto/wire/lanes.h"

namespace gradwire::wire {

// A timer that is so late shows that this process stood still (LaneReceiver::ForgivePause).
inline constexpr int kStandstillSeconds = 2;

template <typename Item, typename Time>
class LaneReceiver {
 public:
  // ---- Order

  // `after`: the frame's. What is no frame has none, and comes with 0.
  std::optional<Item> Arrive(Lane lane, Item item, std::uint64_t after, Time now);

  // The owner has a frame of `lane`, in the order in which it deals with them.
  std::optional<Item> Taken(Lane lane, Time now);

  bool holds(Lane lane) const { return At(lane).held.has_value(); }

  // ---- Pauses: the owner has enough for now, and reads on later

  void Pause(Lane lane) { At(lane).paused = true; }
  // Reading goes on, of the lanes that it returns.
  std::array<bool, kLanes> ReadOn(Time now);

  // ---- Silence

  // Something else shows that the lane lives, such as its beginning.
  void Heard(Lane lane, Time now) { At(lane).heard = now; }
  // This process itself stood still for `pause`. Frames that arrived meanwhile wait in sockets, so
  // the peer was not silent. Only the pause is subtracted, so that a process whose timers are
  // always late still notices silence.
  template <typename Duration>
  void ForgivePause(Duration pause, Time now);
  // When the lane will have been silent for `limit`. None: it does not count now.
  template <typename Duration>
  std::optional<Time> SilentAt(Lane lane, Duration limit) const;

 private:
  struct Held {
    Item item;
    std::uint64_t after = 0;
  };
  struct Way {
    std::optional<Held> held;
    bool paused = false;
    std::optional<Time> heard;  // none: it has not begun
  };

  Way& At(Lane lane) { return ways_[Index(lane)]; }
  const Way& At(Lane lane) const { return ways_[Index(lane)]; }

  ReorderGate gate_;
  std::array<Way, kLanes> ways_;
};

template <typename Item, typename Time>
std::optional<Item> LaneReceiver<Item, Time>::Arrive(Lane lane, Item item, std::uint64_t after,
                                                     Time now) {
  At(lane).heard = now;
  if (gate_.MayTake(lane, after)) return item;
  At(lane).held = Held{std::move(item), after};
  return std::nullopt;
}

template <typename Item, typename Time>
std::optional<Item> LaneReceiver<Item, Time>::Taken(Lane lane, Time now) {
  gate_.Take(lane);
  Way& other = At(Other(lane));
  if (!other.held || !gate_.MayTake(Other(lane), other.held->after)) return std::nullopt;
  other.heard = now;  // its silence counts from here on
  return std::exchange(other.held, std::nullopt)->item;
}

template <typename Item, typename Time>
std::array<bool, kLanes> LaneReceiver<Item, Time>::ReadOn(Time now) {
  std::array<bool, kLanes> lanes{};
  for (const Lane lane : kAllLanes) {
    Way& way = At(lane);
    lanes[Index(lane)] = std::exchange(way.paused, false);
    if (lanes[Index(lane)]) way.heard = now;
  }
  return lanes;
}

template <typename Item, typename Time>
template <typename Duration>
void LaneReceiver<Item, Time>::ForgivePause(Duration pause, Time now) {
  for (Way& way : ways_) {
    if (way.heard) way.heard = std::min<Time>(*way.heard + pause, now);
  }
}

// A lane can be silent only while this side reads from it. While it holds a frame or is paused,
// nothing is read from it. A held frame waits for frames of the other lane, so the silence of the
// other lane counts. If both lanes hold a frame, neither can ever continue; no honest sender causes
// that, and it counts as silence.
template <typename Item, typename Time>
template <typename Duration>
std::optional<Time> LaneReceiver<Item, Time>::SilentAt(Lane lane, Duration limit) const {
  const Way& way = At(lane);
  const bool waits_for_other = holds(lane) && !holds(Other(lane));
  if (!way.heard || way.paused || waits_for_other) return std::nullopt;
  return *way.heard + limit;
}

}  // namespace gradwire::wire

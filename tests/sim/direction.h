// One direction of a connection between a process and the daemon.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/time/time.h"
#include "proto/wire/lanes.h"

namespace gradwire::sim {

// Lanes, each ordered and reliable until it is cut. What arrives waits at its lane's head until
// LaneGate lets it pass.
template <class What>
class Direction {
 public:
  struct Arrival {
    wire::Lane lane = wire::Lane::kMain;
    absl::Time at;
  };

  // With one lane, all take the main one.
  wire::LaneOrder::Place PlaceOf(const wire::Weight& weight, bool has_bulk) {
    return has_bulk ? order_.Next(weight) : wire::LaneOrder::Place{};
  }
  Arrival Put(What what, const wire::LaneOrder::Place& place, absl::Time arrives) {
    return Put({.what = std::move(what), .number = next_++, .after = place.after}, place.lane,
               arrives);
  }
  // What is no frame: the lanes do not count it.
  Arrival PutUncounted(What what, absl::Time arrives) {
    return Put({.what = std::move(what), .number = next_++, .counts = false}, wire::Lane::kMain,
               arrives);
  }
  // A Hello is not counted either. Nothing arrives on any lane before it.
  Arrival PutFirst(What what, absl::Time arrives) {
    for (Queue& queue : lanes_) queue.last = arrives;
    return PutUncounted(std::move(what), arrives);
  }

  bool empty(wire::Lane lane) const { return At(lane).sent.empty(); }
  const What& head(wire::Lane lane) const { return At(lane).sent.front().what; }
  What* back(wire::Lane lane) { return empty(lane) ? nullptr : &At(lane).sent.back().what; }
  absl::Time last() const {
    absl::Time latest = absl::InfinitePast();
    for (const Queue& queue : lanes_) latest = std::max(latest, queue.last);
    return latest;
  }

  // One more has arrived. Whether the head may be taken; if not, WakeUp says when.
  bool Admit(wire::Lane lane) {
    if (MayTake(lane)) return true;
    ++At(lane).held;
    return false;
  }
  // The head, which was admitted, and whether it goes before something that was sent earlier.
  std::pair<What, bool> Take(wire::Lane lane) {
    Sent sent = std::move(At(lane).sent.front());
    At(lane).sent.pop_front();
    if (sent.counts) gate_.Take(lane);
    const Queue& other = At(wire::Other(lane));
    const bool overtakes =
        sent.counts && !other.sent.empty() && other.sent.front().number < sent.number;
    return {std::move(sent.what), overtakes};
  }
  // Whether an arrival that was not admitted is to be tried again.
  bool WakeUp(wire::Lane lane) {
    if (At(lane).held == 0 || empty(lane) || !MayTake(lane)) return false;
    --At(lane).held;
    return true;
  }

  // A cut: of each lane, `keep` (a function of its length) frames still arrive. `drop` gets the
  // others, each lane's in the order they were sent.
  template <class Keep, class Drop>
  void Cut(const Keep& keep, const Drop& drop) {
    for (Queue& queue : lanes_) {
      const auto first = static_cast<std::ptrdiff_t>(keep(queue.sent.size()));
      std::for_each(queue.sent.begin() + first, queue.sent.end(),
                    [&](Sent& sent) { drop(std::move(sent.what)); });
      queue.sent.erase(queue.sent.begin() + first, queue.sent.end());
    }
  }

 private:
  struct Sent {
    What what;
    std::uint64_t number = 0;  // of the connection's
    std::uint64_t after = 0;
    bool counts = true;
  };
  struct Queue {
    std::deque<Sent> sent;
    absl::Time last = absl::InfinitePast();
    std::size_t held = 0;
  };

  Queue& At(wire::Lane lane) { return lanes_[wire::Index(lane)]; }
  const Queue& At(wire::Lane lane) const { return lanes_[wire::Index(lane)]; }
  bool MayTake(wire::Lane lane) const { return gate_.MayTake(lane, At(lane).sent.front().after); }
  Arrival Put(Sent sent, wire::Lane lane, absl::Time arrives) {
    Queue& queue = At(lane);
    queue.sent.push_back(std::move(sent));
    queue.last = std::max(queue.last, arrives);
    return {lane, queue.last};
  }

  std::array<Queue, wire::kLanes> lanes_;
  wire::LaneOrder order_;
  wire::LaneGate gate_;
  std::uint64_t next_ = 0;
};

}  // namespace gradwire::sim

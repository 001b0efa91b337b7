// One direction of a connection between a process and the daemon: the sender's queues, a network,
// and the receiver's order, with the code of proto/wire on both sides.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "proto/wire/lane_receiver.h"
#include "proto/wire/lane_sender.h"

namespace gradwire::sim {

// Each lane is ordered, and reliable until it is cut. A frame takes time to write, and what is sent
// meanwhile waits in the sender's queue.
template <class What>
class Direction {
 public:
  // A frame that left the sender.
  struct Departure {
    wire::Lane lane = wire::Lane::kMain;
    absl::Time arrives;
    absl::Duration writing;      // zero: the lane is free again
    const What* what = nullptr;  // until it is read
  };

  explicit Direction(bool paired = false) : sender_(paired) {}

  // ---- Sending. Depart follows.

  // `at_once`: it takes no time to be written.
  void Put(What what, const wire::SendPriority& priority, bool at_once = false) {
    sender_.Queue({.what = std::move(what), .number = next_++, .at_once = at_once}, priority);
  }
  // Lets the last frame that has not left the main lane say what another one says: join(last).
  template <class Join>
  bool JoinLast(const Join& join) {
    return sender_.JoinLast([&join](Sent& last) { return join(last.what); });
  }
  // On each lane that is idle; takes no time to be written.
  void PutHeartbeats(What what) {
    sender_.QueueHeartbeats({.what = std::move(what), .number = next_++, .at_once = true});
  }
  // What has not left the sender.
  std::size_t waiting() const { return sender_.size(); }
  template <typename Visit>
  void ForEachWaiting(Visit visit) const {
    sender_.ForEach([&visit](const Sent& sent) { visit(sent.what); });
  }
  // After all that was put, the stream's end.
  void End(What what) {
    sender_.Close();
    end_ = Sent{.what = std::move(what), .number = next_++, .counts = false};
  }
  // The Hello. Nothing arrives on any lane before it.
  absl::Time PutFirst(What what, absl::Time arrives) {
    for (Way& way : ways_) way.last = arrives;
    return Travel(wire::Lane::kMain, {.what = std::move(what), .number = next_++, .counts = false},
                  0, arrives);
  }

  // One frame that can be written now. `delay` maps a lane to how long a frame is on its way there,
  // `share` gives the part of that which it takes to be written: WriteEnded follows then.
  template <class Delay, class Share>
  std::optional<Departure> Depart(absl::Time now, const Delay& delay, const Share& share) {
    for (const wire::Lane lane : wire::kAllLanes) {
      if (auto next = sender_.Next(lane)) {
        const absl::Duration travels = delay(lane);
        const absl::Duration writing =
            next->item.at_once ? absl::ZeroDuration() : travels * share();
        if (writing == absl::ZeroDuration()) sender_.Written(lane);
        const absl::Time arrives = Travel(lane, std::move(next->item), next->after, now + travels);
        return Departure{lane, arrives, writing, &At(lane).network.back().what};
      }
    }
    if (!end_ || sender_.writing(wire::Lane::kMain)) return std::nullopt;
    const absl::Time arrives = now + delay(wire::Lane::kMain);
    Sent end = *std::exchange(end_, std::nullopt);
    const absl::Time last = Travel(wire::Lane::kMain, std::move(end), 0, arrives);
    return Departure{.arrives = last,
                     .writing = absl::ZeroDuration(),
                     .what = &At(wire::Lane::kMain).network.back().what};
  }
  void WriteEnded(wire::Lane lane) { sender_.Written(lane); }

  // ---- Arriving

  absl::Time last() const {
    absl::Time latest = absl::InfinitePast();
    for (const Way& way : ways_) latest = std::max(latest, way.last);
    return latest;
  }
  // The frame that Read would give, if any. Reads from the lane what has arrived there.
  const What* Head(wire::Lane lane, absl::Time now) {
    Way& way = At(lane);
    while (!way.head && !receiver_.holds(lane) && !way.network.empty() &&
           way.network.front().arrives <= now) {
      Sent sent = std::move(way.network.front());
      way.network.pop_front();
      if (!sent.counts) {
        way.head = std::move(sent);
      } else {
        const std::uint64_t after = sent.after;
        way.head = receiver_.Arrive(lane, std::move(sent), after, now);
      }
    }
    return way.head ? &way.head->what : nullptr;
  }
  // The head, and whether it goes before something that was sent earlier. It may free frames.
  std::pair<What, bool> Read(wire::Lane lane, absl::Time now) {
    Sent sent = *std::exchange(At(lane).head, std::nullopt);
    const bool overtakes = sent.counts && sent.number > Earliest();
    if (sent.counts) {
      // A lane that held a frame has read none since, so that it has no head.
      if (auto freed = receiver_.Taken(lane, now)) At(wire::Other(lane)).head = std::move(freed);
    }
    return {std::move(sent.what), overtakes};
  }

  // wire::LaneReceiver's pauses and silence.
  void Begin(absl::Time now) {
    for (const wire::Lane lane : wire::kAllLanes) receiver_.Heard(lane, now);
  }
  void Pause(wire::Lane lane) { receiver_.Pause(lane); }
  std::array<bool, wire::kLanes> ReadOn(absl::Time now) { return receiver_.ReadOn(now); }
  std::optional<absl::Time> SilentAt(wire::Lane lane, absl::Duration limit) const {
    return receiver_.SilentAt(lane, limit);
  }
  void ForgivePause(absl::Duration pause, absl::Time now) { receiver_.ForgivePause(pause, now); }

  // A cut: of each lane, `keep` (a function of its length) frames that have left still arrive.
  // `drop` gets the others, each lane's in the order they were sent. What has not left is lost.
  template <class Keep, class Drop>
  void Cut(const Keep& keep, const Drop& drop) {
    sender_.Drop();
    end_.reset();
    for (Way& way : ways_) {
      const auto first = static_cast<std::ptrdiff_t>(keep(way.network.size()));
      std::for_each(way.network.begin() + first, way.network.end(),
                    [&](Sent& sent) { drop(std::move(sent.what)); });
      way.network.erase(way.network.begin() + first, way.network.end());
    }
  }

 private:
  struct Sent {
    What what;
    std::uint64_t number = 0;  // of the connection's, in the order they were put
    bool at_once = false;
    bool counts = true;
    std::uint64_t after = 0;
    absl::Time arrives = absl::InfinitePast();
  };
  struct Way {
    std::deque<Sent> network;
    absl::Time last = absl::InfinitePast();
    std::optional<Sent> head;  // was read and may be dealt with
  };

  Way& At(wire::Lane lane) { return ways_[wire::Index(lane)]; }
  absl::Time Travel(wire::Lane lane, Sent sent, std::uint64_t after, absl::Time arrives) {
    Way& way = At(lane);
    way.last = std::max(way.last, arrives);
    sent.after = after;
    sent.arrives = way.last;
    way.network.push_back(std::move(sent));
    return way.last;
  }
  // The number of the earliest frame in the network.
  std::uint64_t Earliest() const {
    std::uint64_t earliest = next_;
    for (const Way& way : ways_) {
      for (const Sent& sent : way.network) earliest = std::min(earliest, sent.number);
    }
    return earliest;
  }

  wire::LaneSender<Sent> sender_;
  wire::LaneReceiver<Sent, absl::Time> receiver_;
  std::array<Way, wire::kLanes> ways_;
  std::optional<Sent> end_;
  std::uint64_t next_ = 0;
};

}  // namespace gradwire::sim

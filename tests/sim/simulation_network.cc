// The simulation's streams from the daemon to its members, with the limits of both sides' queues,
// and the way up to the daemon.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace gradwire::sim {

// A member that reads never has so many frames waiting. One that does not loses its stream, and is
// lost to the session unless it resumes.
bool Simulation::MayWait(Link& link, const DownFrame& frame) {
  const auto count = [&link] {
    std::size_t bytes = 0;
    link.down.ForEachWaiting([&bytes](const DownFrame& waiting) {
      if (waiting.keeper.expired()) bytes += waiting.held_bytes;
    });
    return bytes;
  };
  const absl::Status may =
      link.limits->Add(link.down.waiting(), frame.held_bytes, frame.keeper.expired(), count);
  if (may.ok()) return true;
  Note(Count::kQueuesFull);
  if (!processes_[link.process]->deaf) {
    checker_.Violate(absl::StrCat("rank ", link.rank, " reads, and yet ", may.message()));
  }
  link.cut = true;
  link.limits->Clear();
  link.down.Cut([](std::size_t) { return 0; }, [](const auto&) {});
  After(absl::Milliseconds(100), [this, &link] { Detach(link); });  // the next tick ends the stream
  return false;
}

void Simulation::Detach(Link& link) {
  if (DaemonPaused([this, &link] { Detach(link); }, false)) return;
  server::Effects effects;
  session_.Detach(link.rank, link.id, now_, effects);
  Apply(std::move(effects));
}

void Simulation::SendHeartbeats(Link& link) {
  After(
      scenario_.options.silence_timeout / 5,
      [this, &link] {
        const auto beat = [this, &link](const auto& self) -> void {
          if (DaemonPaused([self] { self(self); }, true)) return;
          const auto current = current_.find(link.rank);
          if (link.cut || current == current_.end() || current->second != &link) return;
          link.down.PutHeartbeats({.action =
                                       [this, &link] {
                                         Process& process = *processes_[link.process];
                                         if (process.link == &link) process.reconnect->OnHeard();
                                       },
                                   .background = true});
          WriteDown(link);
          SendHeartbeats(link);
        };
        beat(beat);
      },
      true);
}

void Simulation::PushDown(Link& link, const std::optional<wire::SendPriority>& priority,
                          DownFrame frame) {
  if (link.cut) return Note(Count::kFramesLost);
  if (priority) {
    if (!MayWait(link, frame)) return;
    link.down.Put(std::move(frame), *priority);
  } else {
    link.down.End(std::move(frame));
  }
  WriteDown(link);
}

// A member that does not read leaves no room in its socket, so that nothing more is written.
void Simulation::WriteDown(Link& link) {
  if (processes_[link.process]->deaf) return;
  while (const auto left = link.down.Depart(
             now_, [this](wire::Lane lane) { return NetworkDelay(lane); },
             [this] { return WriteShare(); })) {
    link.limits->Taken(left->what->held_bytes);
    At(
        left->arrives,
        [this, &link, lane = left->lane, background = left->what->background] {
          PumpDown(link, lane, background);
        },
        left->what->background);
    if (left->writing == absl::ZeroDuration()) continue;
    const auto ended = [this, &link, lane = left->lane](const auto& self) -> void {
      if (DaemonPaused([self] { self(self); }, false)) return;
      link.down.WriteEnded(lane);
      WriteDown(link);
    };
    After(left->writing, [ended] { ended(ended); });
  }
}

// `background`: a heartbeat brought this about.
void Simulation::PumpDown(Link& link, wire::Lane lane, bool background) {
  Process& process = *processes_[link.process];
  if (process.deaf || link.paused[wire::Index(lane)]) return;
  if (link.bulk_stuck && lane == wire::Lane::kBulk) return;
  if (link.down.Head(lane, now_) == nullptr) return;
  const auto again = [this, &link, lane, background] { PumpDown(link, lane, background); };
  if (!Awake(process, again, background)) return;
  auto [frame, overtakes] = link.down.Read(lane, now_);
  if (overtakes) Note(Count::kOvertakings);
  const auto action = std::move(frame.action);
  if (process.reading && !frame.background) Arrive(process, link, lane, action);
  for (const wire::Lane next : wire::kAllLanes) {
    const DownFrame* const waiting =
        link.paused[wire::Index(next)] ? nullptr : link.down.Head(next, now_);
    if (waiting == nullptr) continue;
    At(
        now_, [this, &link, next, its = waiting->background] { PumpDown(link, next, its); },
        waiting->background);
  }
  if (!process.reading) action();
}

// The member's event queue: frames wait to be handled one by one, and while too many do, nothing
// more is read.
void Simulation::Arrive(Process& process, Link& link, wire::Lane lane,
                        std::function<void()> action) {
  process.reading->Added();
  if (process.reading->frames() > scenario_.inbox_frames + wire::kLanes) {
    checker_.Violate(
        absl::StrCat(process.reading->frames(), " frames wait at rank ", process.rank));
  }
  if (process.reading->pauses()) {
    Note(Count::kReadingPauses);
    link.paused[wire::Index(lane)] = true;
    link.down.Pause(lane);
  }
  process.inbox.push_back(std::move(action));
  if (process.inbox.size() > 1) return;
  After(random_.Between(absl::ZeroDuration(), absl::Milliseconds(2)),
        [this, &process] { Handle(process); });
}

void Simulation::Handle(Process& process) {
  if (!Awake(process, [this, &process] { Handle(process); })) return;
  const std::function<void()> action = std::move(process.inbox.front());
  process.inbox.pop_front();
  process.reading->Taken();
  if (process.reading->reads_on() && process.link != nullptr) {
    Link& link = *process.link;
    const std::array<bool, wire::kLanes> lanes = link.down.ReadOn(now_);
    for (const wire::Lane lane : wire::kAllLanes) {
      if (!lanes[wire::Index(lane)]) continue;
      link.paused[wire::Index(lane)] = false;
      At(now_, [this, &link, lane] { PumpDown(link, lane); });
    }
  }
  if (!process.inbox.empty()) {
    After(random_.Between(absl::ZeroDuration(), absl::Milliseconds(2)),
          [this, &process] { Handle(process); });
  }
  action();
}

void Simulation::PumpUp(Link& link, wire::Lane lane) {
  const auto is_background = [](const wire::Frame& frame) {
    return std::holds_alternative<wire::Heartbeat>(frame.header);
  };
  const wire::Frame* const head = link.up.Head(lane, now_);
  if (head == nullptr) return;
  if (DaemonPaused([this, &link, lane] { PumpUp(link, lane); }, is_background(*head))) return;
  const auto [frame, overtakes] = link.up.Read(lane, now_);
  if (overtakes) Note(Count::kOvertakings);
  for (const wire::Lane next : wire::kAllLanes) {
    const wire::Frame* const waiting = link.up.Head(next, now_);
    if (waiting == nullptr) continue;
    At(
        now_, [this, &link, next] { PumpUp(link, next); }, is_background(*waiting));
  }
  if (const auto* hello = std::get_if<wire::Hello>(&frame.header)) return OnHello(link, *hello);
  Deliver(link, frame);
}

}  // namespace gradwire::sim

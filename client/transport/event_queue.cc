#include "client/transport/event_queue.h"

#include <optional>
#include <utility>

#include "proto/wire/frame_priority.h"

namespace gradwire::client {
namespace {

// The event queue whose handler runs on this thread, if any. It is saved and restored, because a
// client's callback may call another client.
thread_local const EventQueue* working_on = nullptr;

// Far off, but not so far that the clock overflows.
constexpr auto kNever = std::chrono::hours(1);

}  // namespace

bool EventQueue::OnThisThread() const { return working_on == this; }

// Large work would block a caller, or the thread that reads. A result in place counts as large: its
// frame may stand for many chunks.
bool EventQueue::NeedsSdkThread(const Event& event) {
  if (std::holds_alternative<StreamEndEvent>(event)) return true;
  if (const auto* call = std::get_if<CallEvent>(&event)) return call->heavy;
  const auto* frame = std::get_if<FrameEvent>(&event);
  if (frame == nullptr || !frame->frame.ok()) return false;
  const auto* result = std::get_if<wire::Result>(&frame->frame->header);
  return result != nullptr && (result->in_place || PriorityOf(event).bytes > wire::kSmallPayload);
}

bool EventQueue::IsUrgent(const Event& event) {
  return std::holds_alternative<CallEvent>(event) || std::holds_alternative<WriteEvent>(event);
}

wire::SendPriority EventQueue::PriorityOf(const Event& event) {
  const auto* frame = std::get_if<FrameEvent>(&event);
  if (frame == nullptr || !frame->frame.ok()) return {};
  return wire::PriorityOf(frame->frame->header, frame->frame->payload.get());
}

bool EventQueue::CanWork(bool on_sdk_thread) {
  return handler_ != nullptr && !Next().empty() &&
         (on_sdk_thread || !NeedsSdkThread(Next().front()));
}

// The next chunk is encoded before large results are read, so that the daemon does not run out of
// contributions, but after everything that is small.
bool EventQueue::MayWorkFirst() {
  return Next().empty() || (urgent_.empty() && std::holds_alternative<FrameEvent>(Next().front()) &&
                            NeedsSdkThread(Next().front()));
}

// Once the handler has finished, nobody would take the event, and it may own a stream.
void EventQueue::Push(Event event) {
  {
    MutexLock lock(mutex_);
    if (served_) return;
    (IsUrgent(event) ? urgent_ : events_).push_back(std::move(event));
  }
  Work();
}

void EventQueue::Insert(FrameEvent event) {
  Event frame = std::move(event);
  events_.insert(wire::PlaceInQueue(events_, PriorityOf(frame), PriorityOf), std::move(frame));
  reading_.Added();
}

// All under one lock: a pause that begins with the first frames must not end before the last, since
// the next message would overtake them.
bool EventQueue::PushFrames(absl::StatusOr<std::vector<wire::Frame>> frames, Source from) {
  MutexLock lock(mutex_);
  if (served_ || from.connection != connection_) return false;
  if (!frames.ok()) return PushOne(frames.status(), from);
  bool reads_on = true;
  for (wire::Frame& frame : *frames) reads_on = PushOne(std::move(frame), from);
  return reads_on;
}

bool EventQueue::PushOne(absl::StatusOr<wire::Frame> frame, Source from) {
  const Clock::time_point now = Clock::now();
  const std::uint64_t after = frame.ok() ? frame->after : 0;
  std::optional<FrameEvent> next =
      receiver_.Arrive(from.lane, FrameEvent{std::move(frame), from}, after, now);
  if (!next) return false;
  Insert(*std::move(next));
  // Inserts the frames of the other lane that waited for this one. That lane is not being read
  // meanwhile, and this is not its operation, so the handler begins its next read (`read_on`).
  for (wire::Lane lane = from.lane; (next = receiver_.Taken(lane, now));) {
    lane = wire::Other(lane);
    Insert(*std::move(next));
    receiver_.Pause(lane);
  }
  // Back-pressure: a lane that is not read fills its flow-control window, which stops the daemon.
  const bool pauses = reading_.pauses();
  if (pauses) receiver_.Pause(from.lane);
  return !pauses;
}

std::uint64_t EventQueue::BeginConnection() {
  MutexLock lock(mutex_);
  // Events of the last connection still arrive; PushFrames recognizes them by the old number.
  receiver_ = {};
  for (const wire::Lane lane : wire::kAllLanes) receiver_.Heard(lane, Clock::now());
  return ++connection_;
}

// If another thread is in the handler, the event is left to it: before it leaves it looks at the
// queue once more, under the lock under which this one was added.
void EventQueue::Work() {
  EventHandler* handler = nullptr;
  {
    MutexLock lock(mutex_);
    if (busy_) return;  // that thread looks again before it goes
    if (!CanWork(/*on_sdk_thread=*/false)) {
      if (!Next().empty()) wake_.NotifyOne();
      return;
    }
    busy_ = true;
    handler = handler_;
  }
  Drain(*handler, /*on_sdk_thread=*/false);
}

// has_work and OnIdle are called without the lock, because other threads add events meanwhile. The
// last look under the lock sees them.
void EventQueue::Drain(EventHandler& handler, bool on_sdk_thread) {
  const EventQueue* const outer = std::exchange(working_on, this);
  while (true) {
    std::optional<Event> event;
    ReadOn read_on{};
    const bool has_work = handler.has_work();
    bool works = false;
    {
      MutexLock lock(mutex_);
      works = on_sdk_thread && has_work && MayWorkFirst();
      if (!works && CanWork(on_sdk_thread)) {
        event = std::move(Next().front());
        Next().pop_front();
        if (std::holds_alternative<FrameEvent>(*event)) reading_.Taken();
        if (reading_.reads_on()) read_on = receiver_.ReadOn(Clock::now());
      }
    }
    if (works) {
      handler.DoWork();
      continue;
    }
    if (event) {
      handler.Handle(*std::move(event), read_on);
      continue;
    }
    const Clock::time_point timer = handler.OnIdle();
    MutexLock lock(mutex_);
    if (CanWork(on_sdk_thread)) continue;  // it came meanwhile
    timer_ = timer;
    busy_ = false;
    has_work_ = has_work;
    if (!on_sdk_thread && (has_work || !Next().empty() || timer < sleeps_until_)) wake_.NotifyOne();
    break;
  }
  working_on = outer;
}

// `sleeps_until_` tells other threads when this one wakes up by itself, so that they notify it only
// for an earlier timer. While another thread is in the handler, that thread wakes it.
Clock::time_point EventQueue::WaitForWork() {
  MutexLock lock(mutex_);
  while (busy_ || (Next().empty() && !has_work_ && Clock::now() < timer_)) {
    sleeps_until_ = busy_ ? Clock::now() + kNever : timer_;
    wake_.WaitUntil(mutex_, sleeps_until_);
  }
  sleeps_until_ = Clock::time_point::min();  // awake
  busy_ = true;
  return timer_;
}

void EventQueue::Serve(EventHandler& handler) {
  {
    MutexLock lock(mutex_);
    handler_ = &handler;
    busy_ = true;
  }
  while (!handler.finished()) {
    Drain(handler, /*on_sdk_thread=*/true);
    const Clock::time_point due = WaitForWork();
    const Clock::time_point now = Clock::now();
    if (now >= due) handler.OnTimer(now, now - due);
  }
  // Events own streams, which refer to this queue, so they are destroyed after the lock is
  // released.
  std::deque<Event> urgent;
  std::deque<Event> events;
  MutexLock lock(mutex_);
  handler_ = nullptr;
  busy_ = false;
  served_ = true;
  urgent.swap(urgent_);
  events.swap(events_);
  receiver_ = {};
}

bool EventQueue::holds(wire::Lane lane) const {
  MutexLock lock(mutex_);
  return receiver_.holds(lane);
}

std::optional<Clock::time_point> EventQueue::SilentAt(wire::Lane lane,
                                                      Clock::duration limit) const {
  MutexLock lock(mutex_);
  return receiver_.SilentAt(lane, limit);
}

void EventQueue::ForgivePause(Clock::duration pause) {
  MutexLock lock(mutex_);
  receiver_.ForgivePause(pause, Clock::now());
}

}  // namespace gradwire::client

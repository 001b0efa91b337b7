// Where a client's work waits: frames, ends of writes and streams, user calls. It is done by one
// thread at a time, as a rule by the thread that brings it, so that a frame or a small call needs
// no other thread to wake up.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "absl/status/statusor.h"
#include "base/sync.h"
#include "client/core/reading_limit.h"
#include "proto/wire/frame.h"
#include "proto/wire/lane_receiver.h"

namespace gradwire::client {

using Clock = std::chrono::steady_clock;

// A stream: one lane of one connection.
struct Source {
  wire::Lane lane = wire::Lane::kMain;
  std::uint64_t connection = 0;
};

// A frame came in, or bytes that are none.
struct FrameEvent {
  absl::StatusOr<wire::Frame> frame;
  Source from{};
};
// The stream took the last write; false: it is broken.
struct WriteEvent {
  bool ok = false;
  Source from{};
};
// Nothing more comes in.
struct ReadEndEvent {
  Source from{};
};
// gRPC is through with the stream.
struct StreamEndEvent {
  absl::Status status;
  // Keeps the stream for the SDK thread to destroy, and with it the last reference to its channel.
  std::shared_ptr<void> stream;
  Source from{};
};
struct CallEvent {
  std::function<void()> call{};
  bool heavy = false;  // not to be done by the thread that calls
};
using Event = std::variant<FrameEvent, WriteEvent, ReadEndEvent, StreamEndEvent, CallEvent>;

// The lanes whose reading paused and may go on.
using ReadOn = std::array<bool, wire::kLanes>;

// Does the work. Never two calls at a time, on any thread.
class EventHandler {
 public:
  virtual ~EventHandler() = default;

  virtual void Handle(Event event, const ReadOn& read_on) = 0;

  // Whether it has work of its own, which the SDK thread does bit by bit: DoWork. It goes before
  // large results, and after everything else.
  virtual bool has_work() const = 0;
  virtual void DoWork() = 0;

  // The event queue is empty for now; returns when OnTimer is due, at once if finished.
  virtual Clock::time_point OnIdle() = 0;

  // On the SDK thread. `late`: the timer was due that much earlier.
  virtual void OnTimer(Clock::time_point now, Clock::duration late) = 0;

  // On the SDK thread: whether its loop is over.
  virtual bool finished() const = 0;
};

// Thread-safe. Outlives the client while a stream may call back.
//
// Calls and ends of writes are small and somebody waits for them: they go before frames, each in
// its own order. Frames stay in theirs, but for small results (wire::GoesBefore); large ones are
// left to the SDK thread, so that the thread that brings them reads on.
class EventQueue {
 public:
  // Reading pauses while `max_frames` frames wait.
  explicit EventQueue(std::size_t max_frames) : reading_(max_frames) {}

  // The SDK thread's whole life: timers, and work that no other thread may do. Returns when the
  // handler has finished; what comes later is dropped.
  void Serve(EventHandler& handler) GRADWIRE_EXCLUDES(mutex_);

  // Adds an event, and on a thread that may do it, does what waits. Before Serve, and from inside
  // the handler, events only wait.
  void Push(Event event) GRADWIRE_EXCLUDES(mutex_);

  // Adds a frame only; Work follows. False: enough frames wait, or this one waits for frames of the
  // other lane; the lane reads on when Handle says so. A frame of an earlier connection is dropped.
  bool PushFrame(absl::StatusOr<wire::Frame> frame, Source from = {}) GRADWIRE_EXCLUDES(mutex_);
  void Work() GRADWIRE_EXCLUDES(mutex_);

  // New streams begin; the main one before has ended. Returns the number of their connection; the
  // first that nobody began has number 0.
  std::uint64_t BeginConnection() GRADWIRE_EXCLUDES(mutex_);

  // Whether this thread is inside the handler.
  bool OnThisThread() const;

  // wire::LaneReceiver, of the lanes of the connection that was begun last.
  bool holds(wire::Lane lane) const GRADWIRE_EXCLUDES(mutex_);
  std::optional<Clock::time_point> SilentAt(wire::Lane lane, Clock::duration limit) const
      GRADWIRE_EXCLUDES(mutex_);
  void ForgivePause(Clock::duration pause) GRADWIRE_EXCLUDES(mutex_);

 private:
  static bool NeedsSdkThread(const Event& event);
  static bool IsUrgent(const Event& event);
  static wire::SendPriority PriorityOf(const Event& event);
  // The queue that is next; both may be empty.
  std::deque<Event>& Next() GRADWIRE_REQUIRES(mutex_) {
    return urgent_.empty() ? events_ : urgent_;
  }
  bool CanWork(bool on_sdk_thread) GRADWIRE_REQUIRES(mutex_);
  // What waits is nothing, or a large result.
  bool MayWorkFirst() GRADWIRE_REQUIRES(mutex_);
  // Does what waits until nothing does that this thread may do. `busy_` is the caller's, and given
  // back.
  void Drain(EventHandler& handler, bool on_sdk_thread) GRADWIRE_EXCLUDES(mutex_);
  // Takes `busy_` when there is something to do for the SDK thread; returns when the timer was due.
  Clock::time_point WaitForWork() GRADWIRE_EXCLUDES(mutex_);
  void Insert(FrameEvent event) GRADWIRE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar wake_;  // of the SDK thread
  EventHandler* handler_ GRADWIRE_GUARDED_BY(mutex_) = nullptr;
  std::deque<Event> urgent_ GRADWIRE_GUARDED_BY(mutex_);
  std::deque<Event> events_ GRADWIRE_GUARDED_BY(mutex_);
  bool served_ GRADWIRE_GUARDED_BY(mutex_) = false;    // the handler has finished
  bool busy_ GRADWIRE_GUARDED_BY(mutex_) = false;      // a thread is in the handler
  bool has_work_ GRADWIRE_GUARDED_BY(mutex_) = false;  // the handler has, while none is
  Clock::time_point timer_ GRADWIRE_GUARDED_BY(mutex_);
  Clock::time_point sleeps_until_ GRADWIRE_GUARDED_BY(mutex_);  // the SDK thread, unless woken
  ReadingLimit reading_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint64_t connection_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  // A frame is taken when it gets its place in events_.
  wire::LaneReceiver<FrameEvent, Clock::time_point> receiver_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::client

// The queue of a client's events: frames, completed writes, ended streams, user calls. One thread
// at a time handles them, usually the thread that brings the event, so that a frame or a small call
// need not wake another thread.
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
#include <vector>

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

// A frame arrived, or bytes that are not a frame.
struct FrameEvent {
  absl::StatusOr<wire::Frame> frame;
  Source from{};
};
// The stream has completed its write. False: the stream is broken.
struct WriteEvent {
  bool ok = false;
  Source from{};
};
// The stream delivers no more frames.
struct ReadEndEvent {
  Source from{};
};
// gRPC has finished with the stream.
struct StreamEndEvent {
  absl::Status status;
  // Keeps the stream for the SDK thread to destroy, and with it the last reference to its channel.
  std::shared_ptr<void> stream;
  Source from{};
};
struct CallEvent {
  std::function<void()> call{};
  bool heavy = false;  // the calling thread must not do it
};
using Event = std::variant<FrameEvent, WriteEvent, ReadEndEvent, StreamEndEvent, CallEvent>;

// The lanes whose reading was paused and may continue.
using ReadOn = std::array<bool, wire::kLanes>;

// Handles the events. Calls come from any thread, one at a time.
class EventHandler {
 public:
  virtual ~EventHandler() = default;

  virtual void Handle(Event event, const ReadOn& read_on) = 0;

  // Whether the handler has work of its own. The SDK thread does it piece by piece (DoWork), before
  // large results and after everything else.
  virtual bool has_work() const = 0;
  virtual void DoWork() = 0;

  // Called when the queue is empty. Returns when OnTimer is due, or a time in the past if finished.
  virtual Clock::time_point OnIdle() = 0;

  // Runs on the SDK thread. `late` is how long ago the timer was due.
  virtual void OnTimer(Clock::time_point now, Clock::duration late) = 0;

  // Runs on the SDK thread: whether its loop should end.
  virtual bool finished() const = 0;
};

// Thread-safe. Outlives the client while a stream may call back.
//
// Calls and completed writes are small and a thread waits for them, so they precede frames. Each
// kind keeps its order, except that small results overtake large ones (wire::GoesBefore). Large
// results are left to the SDK thread, so that the thread that brings them can continue to read.
class EventQueue {
 public:
  // Reading pauses while `max_frames` frames wait.
  explicit EventQueue(std::size_t max_frames) : reading_(max_frames) {}

  // The SDK thread's loop: timers, and work that no other thread may do. Returns when the handler
  // has finished. Later events are dropped.
  void Serve(EventHandler& handler) GRADWIRE_EXCLUDES(mutex_);

  // Adds an event and, if this thread may, handles waiting events. Before Serve, and inside the
  // handler, events only wait.
  void Push(Event event) GRADWIRE_EXCLUDES(mutex_);

  // Only adds the frames of a message; call Work next. False: reading of this lane pauses until
  // Handle resumes it, because enough frames wait or these wait for the other lane. Those of an
  // earlier connection are dropped.
  bool PushFrames(absl::StatusOr<std::vector<wire::Frame>> frames, Source from = {})
      GRADWIRE_EXCLUDES(mutex_);
  void Work() GRADWIRE_EXCLUDES(mutex_);

  // New streams begin; the previous main stream must have ended. Returns the number of their
  // connection. Before the first call the number is 0.
  std::uint64_t BeginConnection() GRADWIRE_EXCLUDES(mutex_);

  // Whether this thread is inside the handler.
  bool OnThisThread() const;

  // As in wire::LaneReceiver, for the lanes of the latest connection.
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
  // Whether nothing waits, or only large results.
  bool MayWorkFirst() GRADWIRE_REQUIRES(mutex_);
  // Handles waiting events as long as this thread may. The caller has set `busy_`; this resets it.
  void Drain(EventHandler& handler, bool on_sdk_thread) GRADWIRE_EXCLUDES(mutex_);
  // Sets `busy_` when the SDK thread has something to do. Returns when the timer was due.
  Clock::time_point WaitForWork() GRADWIRE_EXCLUDES(mutex_);
  bool PushOne(absl::StatusOr<wire::Frame> frame, Source from) GRADWIRE_REQUIRES(mutex_);
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

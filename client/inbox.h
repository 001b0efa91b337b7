// Where a client's SDK thread finds its work: frames, ends of writes and streams, user calls.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "absl/status/statusor.h"
#include "proto/wire/frame.h"
#include "proto/wire/sync.h"

namespace gradwire::client {

using Clock = std::chrono::steady_clock;

// A frame came in, or bytes that are none.
struct FrameEvent {
  absl::StatusOr<wire::Frame> frame;
};
// The stream took the last write; false: it is broken.
struct WriteEvent {
  bool ok = false;
};
// Nothing more comes in.
struct ReadEndEvent {};
// gRPC is through with the stream.
struct StreamEndEvent {
  absl::Status status;
  // Keeps the stream for the SDK thread to destroy: with it goes the last reference to its channel,
  // and gRPC 1.51 ends its callback threads with the last channel of a process, which one of those
  // threads cannot do itself.
  std::shared_ptr<void> stream;
};
using CallEvent = std::function<void()>;
using Event = std::variant<FrameEvent, WriteEvent, ReadEndEvent, StreamEndEvent, CallEvent>;

// Thread-safe. Outlives the client while a stream may call back.
class Inbox {
 public:
  // Reading pauses while `max_frames` frames wait.
  explicit Inbox(std::size_t max_frames) : max_frames_(max_frames) {}

  void Push(Event event);

  // False: enough frames wait; read on when Pop says so.
  bool PushFrame(absl::StatusOr<wire::Frame> frame);

  struct Popped {
    std::optional<Event> event;  // none: the deadline passed
    bool read_on = false;
  };
  Popped Pop(Clock::time_point deadline);

  // When the last frame came in.
  Clock::time_point last_heard() const;

 private:
  const std::size_t max_frames_;
  mutable Mutex mutex_;
  CondVar condition_;
  std::deque<Event> events_ GRADWIRE_GUARDED_BY(mutex_);
  std::size_t frames_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  bool paused_ GRADWIRE_GUARDED_BY(mutex_) = false;
  Clock::time_point last_heard_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::client

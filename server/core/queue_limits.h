// How much may wait for a member that does not read: the rule of its send queue.
//
// What the session keeps is in its reservation, however many queues refer to it. `max_bytes` is for
// payloads that only queues hold, and `max_frames` bounds the headers. A member that reads and
// keeps the protocol reaches neither, because the session's windows end before.
//
// Knows no frames. Not thread-safe.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mutants.h"

namespace gradwire::server {

class QueueLimits {
 public:
  struct Limits {
    std::size_t max_bytes = 0;
    std::size_t max_frames = 0;
  };

  explicit QueueLimits(const Limits& limits) : limits_(limits) {}

  // One more frame is to wait, behind `frames`. It refers to `bytes`; `only_queued`: only queues
  // hold them. `count()` returns the bytes of waiting frames that only queues hold.
  // ResourceExhausted: the member does not read; the frame may not wait.
  template <typename Count>
  absl::Status Add(std::size_t frames, std::size_t bytes, bool only_queued, const Count& count);

  // A frame that refers to `bytes` waits no more.
  void Taken(std::size_t bytes) { held_bytes_ -= bytes; }
  // No frame waits.
  void Clear() { held_bytes_ = 0; }

 private:
  const Limits limits_;
  std::size_t held_bytes_ = 0;       // to which waiting frames refer
  std::size_t uncounted_bytes_ = 0;  // added since the last count
};

template <typename Count>
absl::Status QueueLimits::Add(std::size_t frames, std::size_t bytes, bool only_queued,
                              const Count& count) {
  if (frames >= limits_.max_frames && !IsActive(Mutant::kSendQueueUnbounded)) {
    return absl::ResourceExhaustedError(absl::StrCat("the member does not read: more than ",
                                                     limits_.max_frames, " frames wait for it"));
  }
  // Counting looks at every frame, so it is done only where the limit could be reached, and once
  // for every so many bytes.
  uncounted_bytes_ += bytes;
  if (held_bytes_ + bytes > limits_.max_bytes && uncounted_bytes_ > limits_.max_bytes / 4) {
    uncounted_bytes_ = 0;
    if (count() + (only_queued ? bytes : 0) > limits_.max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("the member does not read: more than ",
                                                       limits_.max_bytes, " bytes wait for it"));
    }
  }
  held_bytes_ += bytes;
  return absl::OkStatus();
}

}  // namespace gradwire::server

// When a member stops reading because enough frames wait to be handled, and when it reads on.
// Half of the limit lies between the two, so that lanes do not stop and go with every frame.
// Not thread-safe.
#pragma once

#include <cstddef>

namespace gradwire::client {

class ReadingLimit {
 public:
  explicit ReadingLimit(std::size_t max_frames) : max_frames_(max_frames) {}

  void Added() { ++frames_; }
  void Taken() { --frames_; }

  std::size_t frames() const { return frames_; }
  // A lane that brought a frame pauses now.
  bool pauses() const { return frames_ >= max_frames_; }
  // Lanes that have paused read on.
  bool reads_on() const { return frames_ <= max_frames_ / 2; }

 private:
  const std::size_t max_frames_;
  std::size_t frames_ = 0;
};

// Frames that may wait beyond those that the session's windows allow: grants, the ends of steps and
// the like.
inline constexpr std::size_t kSmallFrames = 64;

}  // namespace gradwire::client

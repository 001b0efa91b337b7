// Bounds how many lines of one kind the log gets: peers can cause as many as they like.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "base/sync.h"

namespace gradwire::server {

// Thread-safe.
class LineLimit {
 public:
  explicit LineLimit(int lines_per_second) : most_(lines_per_second) {}

  // nullopt: leave the line out. Otherwise how many were left out since the last one.
  std::optional<int> Allow(std::chrono::steady_clock::time_point now) GRADWIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (now >= begin_ + std::chrono::seconds(1)) {
      begin_ = now;
      lines_ = 0;
    }
    if (++lines_ > most_) {
      ++left_out_;
      return std::nullopt;
    }
    return std::exchange(left_out_, 0);
  }

 private:
  const int most_;
  Mutex mutex_;
  std::chrono::steady_clock::time_point begin_ GRADWIRE_GUARDED_BY(mutex_);
  int lines_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  int left_out_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::server

// The last lines of the log, kept in memory for a bug report.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/sync.h"

namespace gradwire::server {

// Thread-safe.
class LogRing {
 public:
  static constexpr std::size_t kMostLines = 1000;
  static constexpr std::size_t kMostBytes = std::size_t{256} << 10;  // of all lines together
  static constexpr std::size_t kMostLineBytes = std::size_t{1} << 10;

  // Drops the oldest lines where there are too many. Of a longer line its beginning is kept, with
  // "..." at its end. Bytes that are no UTF-8 become '?'.
  void Add(std::string_view line) GRADWIRE_EXCLUDES(mutex_);
  // Oldest first.
  std::vector<std::string> Lines() const GRADWIRE_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::deque<std::string> lines_ GRADWIRE_GUARDED_BY(mutex_);
  std::size_t bytes_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::server

// Outcomes of asynchronous calls on their way from the SDK's thread, which must not wait for the
// interpreter, to a Python thread that takes them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/sync.h"

namespace gradwire::python {

struct Completed {
  std::uint64_t id = 0;
  int code = 0;  // an absl::StatusCode
  std::string message;
  bool applied = true;  // a step's end: the verdict
};

// Thread-safe.
class Completions {
 public:
  void Push(std::uint64_t id, const absl::Status& status, bool applied = true);

  // What has come, at least one after at most `seconds`; empty when time is up or after Close.
  std::vector<Completed> Take(double seconds);

  // Wakes the taker for good.
  void Close();
  bool closed() const;

 private:
  mutable Mutex mutex_;
  CondVar arrived_;
  std::deque<Completed> queue_ GRADWIRE_GUARDED_BY(mutex_);
  bool closed_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::python

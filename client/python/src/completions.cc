#include "client/python/src/completions.h"

#include <chrono>
#include <utility>

#include "base/error_code.h"

namespace gradwire::python {

// The SDK's threads call it and need no GIL for it: a Python thread collects the outcomes in
// batches with Take.
void Completions::Push(std::uint64_t id, const absl::Status& status, bool applied) {
  {
    const MutexLock lock(mutex_);
    queue_.push_back({.id = id,
                      .code = static_cast<int>(status.code()),
                      .message = std::string(Coded(ErrorCode::kPython, status).message()),
                      .applied = applied});
  }
  arrived_.NotifyOne();
}

std::vector<Completed> Completions::Take(double seconds) {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                            std::chrono::duration<double>(seconds));
  const MutexLock lock(mutex_);
  while (!closed_ && queue_.empty()) {
    if (!arrived_.WaitUntil(mutex_, deadline)) break;
  }
  std::vector<Completed> taken(std::make_move_iterator(queue_.begin()),
                               std::make_move_iterator(queue_.end()));
  queue_.clear();
  return taken;
}

void Completions::Close() {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  arrived_.NotifyAll();
}

bool Completions::closed() const {
  const MutexLock lock(mutex_);
  return closed_;
}

}  // namespace gradwire::python

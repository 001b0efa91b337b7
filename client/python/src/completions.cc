#include "client/python/src/completions.h"

#include <chrono>
#include <utility>

namespace gradwire::python {

void Completions::Push(std::uint64_t id, const absl::Status& status, bool applied) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({.id = id,
                      .code = static_cast<int>(status.code()),
                      .message = std::string(status.message()),
                      .applied = applied});
  }
  arrived_.notify_one();
}

std::vector<Completed> Completions::Take(double seconds) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [this] { return closed_ || !queue_.empty(); });
  std::vector<Completed> taken(std::make_move_iterator(queue_.begin()),
                               std::make_move_iterator(queue_.end()));
  queue_.clear();
  return taken;
}

void Completions::Close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  arrived_.notify_all();
}

bool Completions::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace gradwire::python

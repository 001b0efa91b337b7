// What is to happen in a simulation, by time.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace gradwire::sim {

// Of events at one time, the one that was added first goes first.
class Events {
 public:
  void Add(absl::Time at, std::function<void()> action) {
    queue_.push({at, next_++, std::move(action)});
  }
  bool empty() const { return queue_.empty(); }
  // Runs the next one, after it has set `now` to its time.
  void RunNext(absl::Time& now) {
    Event event = queue_.top();
    queue_.pop();
    now = event.at;
    event.action();
  }

 private:
  struct Event {
    absl::Time at;
    std::uint64_t order = 0;
    std::function<void()> action;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };
  std::priority_queue<Event, std::vector<Event>, Later> queue_;
  std::uint64_t next_ = 0;
};

}  // namespace gradwire::sim

// Tasks that the ticker runs periodically, such as checks of deadlines.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/sync.h"

namespace gradwire::server {

class PeriodicTask {
 public:
  virtual ~PeriodicTask() = default;
  virtual void OnTick(absl::Time now) = 0;
};

// Thread-safe. Holds no lock during OnTick. An OnTick that began before Remove may end after it.
class PeriodicTasks {
 public:
  void Add(const std::shared_ptr<PeriodicTask>& entry) GRADWIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    entries_[entry.get()] = entry;
  }
  void Remove(const PeriodicTask* entry) GRADWIRE_EXCLUDES(mutex_) {
    std::shared_ptr<PeriodicTask> removed;  // destroyed without the lock
    MutexLock lock(mutex_);
    const auto found = entries_.find(entry);
    if (found == entries_.end()) return;
    removed = std::move(found->second);
    entries_.erase(found);
  }
  void Tick(absl::Time now) GRADWIRE_EXCLUDES(mutex_) {
    std::vector<std::shared_ptr<PeriodicTask>> entries;
    {
      MutexLock lock(mutex_);
      entries.reserve(entries_.size());
      for (const auto& [key, entry] : entries_) entries.push_back(entry);
    }
    for (const auto& entry : entries) entry->OnTick(now);
  }

 private:
  Mutex mutex_;
  std::map<const PeriodicTask*, std::shared_ptr<PeriodicTask>> entries_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::server

#include "client/memory/forked_memory.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string_view>
#include <utility>

namespace gradwire::client {

ForkedMemory& ForkedMemory::Global() {
  static ForkedMemory* const memory = new ForkedMemory();
  return *memory;
}

ForkedMemory::ForkedMemory() {
  pthread_atfork([] { Global().BeforeFork(); }, [] { Global().InParent(); },
                 [] { Global().InChild(); });
}

absl::StatusOr<std::uint64_t> ForkedMemory::Add(Range range, Mapping map) {
  MutexLock lock(mutex_);
  if (absl::Status mapped = map(); !mapped.ok()) return mapped;
  ranges_[next_] = std::move(range);
  return next_++;
}

absl::Status ForkedMemory::Remove(std::uint64_t number, Mapping unmap) {
  Range removed;  // its segment is unmapped after the lock is released
  MutexLock lock(mutex_);
  const auto found = ranges_.find(number);
  if (found == ranges_.end()) return absl::OkStatus();
  if (absl::Status unmapped = unmap(); !unmapped.ok()) return unmapped;
  removed = std::move(found->second);
  ranges_.erase(found);
  return absl::OkStatus();
}

void ForkedMemory::IfShared(std::uint64_t number, absl::FunctionRef<void()> use) {
  MutexLock lock(mutex_);
  if (ranges_.contains(number)) use();
}

// Only system calls before the ranges are private: another thread may have been inside any library
// when the process was forked. The descriptors are still open, because they close at exec only.
// Segments are leaked: unmapping them would change nothing for the child.
void ForkedMemory::InChild() {
  for (const auto& [number, range] : ranges_) {
    void* const mapped =
        mmap(range.memory.data(), range.memory.size(), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_FIXED, range.segment->fd(), static_cast<off_t>(range.offset));
    if (mapped != MAP_FAILED) continue;
    constexpr std::string_view kWhy =
        "gradwire: fork: the child got no private mapping of the gradients; it ends\n";
    static_cast<void>(!write(STDERR_FILENO, kWhy.data(), kWhy.size()));
    _exit(1);
  }
  static_cast<void>(new std::map<std::uint64_t, Range>(std::move(ranges_)));
  ranges_.clear();
  mutex_.Unlock();
}

}  // namespace gradwire::client

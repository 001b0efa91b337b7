// A user's gradients in memory that the daemon on this host can read and write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/sync.h"
#include "proto/wire/memory_segment.h"

namespace gradwire::client {

class SharedPages;

// Segments for a user's buckets, so that the daemon can read gradients in place. Thread-safe.
class GradientMemory : public std::enable_shared_from_this<GradientMemory> {
 public:
  // Returns ordinary memory if the system provides no shared memory. It lives as long as its
  // pointer. A forked child has a private view of it (forked_memory.h).
  std::shared_ptr<std::byte> Allocate(std::size_t bytes);

  // Makes the caller's memory shared where it lies, until the last copy of the returned pointer is
  // gone. Rules and errors: SharedPages::Share.
  absl::StatusOr<std::shared_ptr<void>> Share(std::span<std::byte> memory,
                                              std::shared_ptr<void> owner);

  // Shared memory in which `part` lies wholly; null: none that Share made. Keeps the alias, not the
  // sharing.
  std::shared_ptr<SharedPages> PagesOf(std::span<const std::byte> part) const;

  // The segments that are still in use.
  std::vector<std::shared_ptr<wire::MemorySegment>> segments() const;
  // Counts segments that were made.
  std::uint64_t version() const;

 private:
  void Add(const std::shared_ptr<wire::MemorySegment>& segment) GRADWIRE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<std::weak_ptr<wire::MemorySegment>> segments_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<SharedPages>> shared_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint64_t version_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::client

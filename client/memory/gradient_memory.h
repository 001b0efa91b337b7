// A user's gradients in memory that the daemons on this host can read and write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/sync.h"
#include "gradwire/hooks/grad_bucket.h"
#include "proto/wire/memory_segment.h"

namespace gradwire::client {

class SharedPages;

// Segments for a user's buckets, so that daemons can read gradients in place. With several daemons
// each maps the same segments, and writes its own part of a result there. Thread-safe.
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

  // The segments that the user, or a bucket in flight, still has.
  std::vector<std::shared_ptr<wire::MemorySegment>> segments() const;
  // Counts segments that were made.
  std::uint64_t version() const;

 private:
  using Segment = std::shared_ptr<wire::MemorySegment>;

  mutable Mutex mutex_;
  // Not of the segments themselves, which their receivers keep until they hear that they are gone.
  std::vector<std::weak_ptr<const Segment>> allocated_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<SharedPages>> shared_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint64_t version_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

// A bucket in memory that Share took, while it is reduced. Whoever reduces it uses the alias
// (shared_pages.h), and this object copies the edges: once for each bucket, however many daemons
// reduce a part of it. A second copy could take what one of them has written already for gradients.
class BucketAlias {
 public:
  BucketAlias() = default;  // does nothing, as that of a bucket that lies elsewhere
  // Makes the alias the bucket's buffer, if it lies wholly in such memory.
  BucketAlias(const GradientMemory& memory, GradBucket& bucket);

  // When all of the result is in the alias: copies the edges back.
  void Scatter() const;

 private:
  std::shared_ptr<SharedPages> pages_;  // null: none
  std::span<const std::byte> own_;      // the caller's buffer
};

}  // namespace gradwire::client

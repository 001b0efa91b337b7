// Makes the pages of memory that the caller has allocated shared memory, where they lie.
//
// The memory keeps its address and its contents, so that tensors and views over it notice nothing.
// Only pages that lie wholly in it are shared: the rest of its first and last page may hold other
// objects of the process. The segment has pages of its own for these two edges, and a second
// mapping of the segment, the alias, shows the memory as a whole. Users of the alias copy the
// edges, less than two pages, with Gather before and with Scatter after.
//
//   memory     |..edge|page|page|page|edge..|
//                     |    |    |    |           the same pages
//   alias      |..edge|page|page|page|edge..|    page-aligned with the memory
//
// What makes this sound, and is checked where it can be (the rest is the caller's duty):
// - The pages are private anonymous ones, readable and writable, without special properties: not
//   locked, not kept out of forks, not of huge-page file systems, not watched (/proc/self/smaps).
// - Nothing refers to them but through this process's page table. Memory that a device or a
//   kernel's ring has pinned is the caller's to know; torch tells for CUDA.
// - The allocation lives, at its place and in its size, until the pages are private again: `owner`
//   holds it. An allocator never touches the inside of a block in use; what it does with the block
//   afterwards (unmap, trim, hand out again) meets private memory. If the rule is broken,
//   MakePrivate leaves a mapping alone that is not this object's.
// - No other thread writes into the memory while Share copies it. Reads are safe at any time, and
//   writes while MakePrivate runs: the system replaces a mapping at once, with equal contents.
// - A forked child gets private pages (forked_memory.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/memory_segment.h"

namespace gradwire::client {

// Thread-safe, but for the rule about writes.
class SharedPages {
 public:
  // Smaller memory is not shared: small buckets travel in frames.
  static constexpr std::size_t kLeastBytes = std::size_t{64} << 10;

  // FailedPrecondition, with the reason, if sharing the memory would not be sound or is not worth
  // it; ResourceExhausted if the system gives no shared memory. The memory is then as before.
  static absl::StatusOr<std::shared_ptr<SharedPages>> Share(std::span<std::byte> memory,
                                                            std::shared_ptr<void> owner);

  // As MakePrivate.
  ~SharedPages();
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  // Gives the memory private pages with the contents of the shared ones, and then drops `owner`.
  // The alias stays valid, but no longer shows the memory. Idempotent; in a forked child only drops
  // the owner. If the system cannot do it, the pages stay shared, and the owner alive, for the rest
  // of the process. The private pages are a mapping of the segment's file, which has given up its
  // own: where they are dropped (MADV_DONTNEED), zeros follow, as in anonymous memory.
  void MakePrivate();
  bool is_private() const { return dropped_; }

  // What the daemon is offered.
  const std::shared_ptr<wire::MemorySegment>& segment() const { return segment_; }

  // The same bytes in the segment; none: `part` does not lie in the memory.
  std::optional<std::span<std::byte>> Alias(std::span<const std::byte> part) const;

  // Copies those bytes of `part` that are in the edges to the alias, or back from it. `part` lies
  // in the memory. Both do nothing after MakePrivate.
  void Gather(std::span<const std::byte> part);
  void Scatter(std::span<const std::byte> part);

 private:
  SharedPages(std::span<std::byte> memory, std::span<std::byte> pages,
              std::shared_ptr<wire::MemorySegment> segment, std::size_t lead,
              std::shared_ptr<void> owner);

  // Pairs of an edge's part in the memory and in the alias.
  template <class Copy>
  void ForEdges(std::span<const std::byte> part, Copy copy);
  absl::Status Unmap() const;

  const std::span<std::byte> memory_;
  const std::span<std::byte> pages_;  // those of the memory that are shared
  const std::shared_ptr<wire::MemorySegment> segment_;
  const std::size_t lead_;  // from the segment's beginning to the memory's
  // No lock of its own: another thread could hold it when this process is forked.
  std::uint64_t number_ = 0;  // in ForkedMemory; 0: not yet
  std::atomic<bool> dropped_ = false;
  std::shared_ptr<void> owner_;  // of the call that sets dropped_
};

}  // namespace gradwire::client

// Shared mappings that the forked children of this process must not share with it.
//
// A child that computes, or whose allocator hands out freed pages again, would write into the
// parent's gradients. Therefore a handler of fork replaces these mappings in the child, before fork
// returns there, by private ones of the same pages (copy on write). Leaving them out of the child
// (MADV_DONTFORK) would crash a child that frees the memory and uses it again. A child's view is no
// snapshot: pages that it has not written show what the parent and the daemon write later.
//
// Handlers run in fork(), whoever calls it. vfork, posix_spawn and a clone system call run none;
// the first two only begin another program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sync.h"
#include "proto/wire/memory_segment.h"

namespace gradwire::client {

// Thread-safe. No fork happens while one of its calls maps or unmaps.
class ForkedMemory {
 public:
  using Mapping = absl::FunctionRef<absl::Status()>;

  struct Range {
    std::span<std::byte> memory;                   // whole pages
    std::shared_ptr<wire::MemorySegment> segment;  // whose pages they are, from `offset` on
    std::size_t offset = 0;
  };

  // Lives as long as the process.
  static ForkedMemory& Global();

  // Runs `map`, which makes the mapping, and protects it from then on. Returns its number, or
  // map's error, after which nothing is protected.
  absl::StatusOr<std::uint64_t> Add(Range range, Mapping map);

  // Runs `unmap` and ends the protection; after an error the range stays protected. Does nothing in
  // a forked child, whose mapping is private already.
  absl::Status Remove(std::uint64_t number, Mapping unmap);

  // Runs `use` if the range is still protected, so that its mapping stays until it returns.
  void IfShared(std::uint64_t number, absl::FunctionRef<void()> use);

  ForkedMemory(const ForkedMemory&) = delete;
  ForkedMemory& operator=(const ForkedMemory&) = delete;

 private:
  ForkedMemory();

  void BeforeFork() GRADWIRE_NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }
  void InParent() GRADWIRE_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }
  // Ends the child if a mapping cannot be replaced: it must not go on to write there.
  void InChild() GRADWIRE_NO_THREAD_SAFETY_ANALYSIS;

  Mutex mutex_;
  std::map<std::uint64_t, Range> ranges_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint64_t next_ GRADWIRE_GUARDED_BY(mutex_) = 1;
};

}  // namespace gradwire::client

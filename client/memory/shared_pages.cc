#include "client/memory/shared_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/memory/forked_memory.h"
#include "client/memory/private_memory.h"

namespace gradwire::client {
namespace {

std::size_t PageBytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

absl::Status SystemError(const std::string& call) {
  return absl::ResourceExhaustedError(absl::StrCat(call, " failed: ", std::strerror(errno)));
}

// How many bytes of `memory` lie before its first whole page.
std::size_t HeadBytes(std::span<const std::byte> memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return (PageBytes() - address % PageBytes()) % PageBytes();
}

// Over what is mapped there, at once. `kind`: MAP_SHARED or MAP_PRIVATE.
absl::Status MapAt(std::span<std::byte> memory, const wire::MemorySegment& segment,
                   std::size_t offset, int kind) {
  void* const mapped = mmap(memory.data(), memory.size(), PROT_READ | PROT_WRITE, kind | MAP_FIXED,
                            segment.fd(), static_cast<off_t>(offset));
  if (mapped != MAP_FAILED) return absl::OkStatus();
  return SystemError(absl::StrCat("mmap of ", memory.size(), " bytes over gradients"));
}

// Maps all pages for writing, and leaves their contents: those of a private mapping become its own.
// False: some are still the file's.
bool CopyOnWrite(std::span<std::byte> pages) {
  if (madvise(pages.data(), pages.size(), MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  // A kernel before 5.14, which does not know that advice.
  for (std::size_t i = 0; i < pages.size(); i += PageBytes()) {
    __atomic_fetch_add(reinterpret_cast<volatile unsigned char*>(&pages[i]), 0, __ATOMIC_RELAXED);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedPages>> SharedPages::Share(std::span<std::byte> memory,
                                                                std::shared_ptr<void> owner) {
  if (memory.size() < kLeastBytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the memory has ", memory.size(), " bytes; shared are ", kLeastBytes, " and more"));
  }
  const std::size_t page = PageBytes();
  const std::size_t head = HeadBytes(memory);
  if (memory.size() < head + page) {
    return absl::FailedPreconditionError("the memory has no whole page");
  }
  const std::span<std::byte> pages = memory.subspan(head, (memory.size() - head) / page * page);
  std::ifstream smaps("/proc/self/smaps");
  if (absl::Status may = CheckPrivateMemory(pages, smaps); !may.ok()) return may;
  const std::size_t lead = (page - head) % page;
  const std::size_t bytes = (lead + memory.size() + page - 1) / page * page;
  auto segment =
      wire::MemorySegment::Create(kSharedPagesName, bytes, wire::MemorySegment::Others::kMayWrite);
  if (!segment.ok()) return segment.status();
  std::memcpy((*segment)->writable().data() + lead + head, pages.data(), pages.size());
  std::shared_ptr<SharedPages> shared(
      new SharedPages(memory, pages, *segment, lead, std::move(owner)));
  const auto number =
      ForkedMemory::Global().Add({.memory = pages, .segment = *segment, .offset = lead + head},
                                 [&] { return MapAt(pages, **segment, lead + head, MAP_SHARED); });
  if (!number.ok()) return number.status();
  shared->number_ = *number;
  // So that the next backward pass meets no page faults; without it, it does.
  static_cast<void>(CopyOnWrite(pages));
  return shared;
}

SharedPages::SharedPages(std::span<std::byte> memory, std::span<std::byte> pages,
                         std::shared_ptr<wire::MemorySegment> segment, std::size_t lead,
                         std::shared_ptr<void> owner)
    : memory_(memory),
      pages_(pages),
      segment_(std::move(segment)),
      lead_(lead),
      owner_(std::move(owner)) {}

SharedPages::~SharedPages() { MakePrivate(); }

// The private mapping begins with the segment's pages, so that no write of any thread is lost, and
// gets pages of its own before the segment gives up its pages.
absl::Status SharedPages::Unmap() const {
  struct stat info {};
  if (fstat(segment_->fd(), &info) != 0) return SystemError("fstat");
  // Memory that was freed, against the rule, may be another's by now.
  std::ifstream maps("/proc/self/maps");
  if (!IsSharedFrom(pages_, info.st_ino, maps)) return absl::OkStatus();
  const std::size_t offset = lead_ + static_cast<std::size_t>(pages_.data() - memory_.data());
  if (absl::Status mapped = MapAt(pages_, *segment_, offset, MAP_PRIVATE); !mapped.ok()) {
    return mapped;
  }
  // From now on the pages are private; what follows only returns memory.
  if (!CopyOnWrite(pages_)) return absl::OkStatus();
  static_cast<void>(fallocate(segment_->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              static_cast<off_t>(offset), static_cast<off_t>(pages_.size())));
  return absl::OkStatus();
}

void SharedPages::MakePrivate() {
  if (dropped_.exchange(true)) return;
  std::shared_ptr<void> owner = std::move(owner_);
  const absl::Status done = ForkedMemory::Global().Remove(number_, [this] { return Unmap(); });
  // The allocator must not get back memory that is still shared.
  if (!done.ok()) static_cast<void>(new std::shared_ptr<void>(std::move(owner)));
}

std::optional<std::span<std::byte>> SharedPages::Alias(std::span<const std::byte> part) const {
  const std::less_equal<> at_most;
  if (!at_most(memory_.data(), part.data()) ||
      !at_most(part.data() + part.size(), memory_.data() + memory_.size())) {
    return std::nullopt;
  }
  const auto offset = static_cast<std::size_t>(part.data() - memory_.data());
  return segment_->writable().subspan(lead_ + offset, part.size());
}

template <class Copy>
void SharedPages::ForEdges(std::span<const std::byte> part, Copy copy) {
  std::byte* const alias = segment_->writable().data() + lead_;
  const auto first = static_cast<std::size_t>(part.data() - memory_.data());
  const std::size_t last = first + part.size();
  const auto pages = static_cast<std::size_t>(pages_.data() - memory_.data());
  const std::pair<std::size_t, std::size_t> edges[] = {{0, pages},
                                                       {pages + pages_.size(), memory_.size()}};
  ForkedMemory::Global().IfShared(number_, [&] {
    for (const auto& [edge_begin, edge_end] : edges) {
      const std::size_t begin = std::max(first, edge_begin);
      const std::size_t end = std::min(last, edge_end);
      if (begin < end) copy(memory_.data() + begin, alias + begin, end - begin);
    }
  });
}

void SharedPages::Gather(std::span<const std::byte> part) {
  ForEdges(part, [](std::byte* memory, std::byte* alias, std::size_t bytes) {
    std::memcpy(alias, memory, bytes);
  });
}

void SharedPages::Scatter(std::span<const std::byte> part) {
  ForEdges(part, [](std::byte* memory, std::byte* alias, std::size_t bytes) {
    std::memcpy(memory, alias, bytes);
  });
}

}  // namespace gradwire::client

#include "proto/wire/memory_segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::wire {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr std::size_t kDiskBlock = 512;  // what st_blocks counts
constexpr std::size_t kPage = 4096;
// Pages are mapped so many bytes at a time. The kernel locks all mappings of this process
// meanwhile, and every mmap, munmap and new thread of it waits.
constexpr std::size_t kPiece = std::size_t{4} << 20;

absl::Status SystemError(const std::string& call) {
  return absl::ResourceExhaustedError(absl::StrCat(call, " failed: ", std::strerror(errno)));
}

// Maps all pages now, so that no later touch waits for the kernel.
absl::Status Populate(std::span<std::byte> memory, GoOn go_on) {
  for (std::size_t begin = 0; begin < memory.size(); begin += kPiece) {
    if (absl::Status may = go_on(); !may.ok()) return may;
    const auto piece = memory.subspan(begin, std::min(kPiece, memory.size() - begin));
    if (madvise(piece.data(), piece.size(), MADV_POPULATE_READ) == 0) continue;
    if (errno != EINVAL) {
      return SystemError(absl::StrCat("madvise of ", memory.size(), " bytes of shared memory"));
    }
    // A kernel before 5.14, which does not know that advice.
    for (std::size_t page = 0; page < piece.size(); page += kPage) {
      static_cast<void>(*static_cast<const volatile std::byte*>(&piece[page]));
    }
  }
  return absl::OkStatus();
}

absl::Status Refused(const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("shared memory: ", why,
                   "; allowed: a memfd with F_SEAL_SHRINK and F_SEAL_GROW, wholly "
                   "allocated"));
}

}  // namespace

MemorySegment::MemorySegment(UniqueFd fd, std::byte* data, std::size_t bytes, bool may_write)
    : fd_(std::move(fd)), data_(data), bytes_(bytes), may_write_(may_write) {}

MemorySegment::~MemorySegment() { munmap(data_, bytes_); }

absl::StatusOr<std::shared_ptr<MemorySegment>> MemorySegment::Create(const std::string& name,
                                                                     std::size_t bytes,
                                                                     Others others) {
  if (bytes == 0) return absl::InvalidArgumentError("bytes: 0; allowed: 1 and more");
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return SystemError("memfd_create");
  // Unlike ftruncate it takes the pages now: a later touch cannot end the process.
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    return SystemError(absl::StrCat("fallocate of ", bytes, " bytes of shared memory"));
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return SystemError(absl::StrCat("mmap of ", bytes, " bytes of shared memory"));
  }
  std::shared_ptr<MemorySegment> segment(
      new MemorySegment(std::move(fd), static_cast<std::byte*>(data), bytes, true));
  if (absl::Status there = Populate(segment->writable(), AlwaysGoOn); !there.ok()) return there;
  int seals = kSizeSeals | F_SEAL_SEAL;
  // Mappings that are there, such as this one, stay writable.
  if (others == Others::kMayRead) seals |= F_SEAL_FUTURE_WRITE;
  if (fcntl(segment->fd(), F_ADD_SEALS, seals) != 0) return SystemError("F_ADD_SEALS");
  return segment;
}

absl::StatusOr<std::shared_ptr<MemorySegment>> MemorySegment::Map(UniqueFd fd,
                                                                  std::size_t max_bytes,
                                                                  Access access, GoOn go_on) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return Refused("this descriptor cannot be sealed");
  if ((seals & kSizeSeals) != kSizeSeals) return Refused("its size is not sealed");
  // A hole in a huge page, made later, could find none left: that would end this process.
  struct statfs kind {};
  if (fstatfs(fd.get(), &kind) != 0) return SystemError("fstatfs");
  if (kind.f_type != TMPFS_MAGIC) return Refused("it has huge pages");
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return SystemError("fstat");
  const auto bytes = static_cast<std::size_t>(info.st_size);
  if (info.st_size <= 0 || bytes > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: has ", info.st_size, " bytes; allowed: 1 to ", max_bytes));
  }
  if (static_cast<std::size_t>(info.st_blocks) * kDiskBlock < bytes) {
    return Refused("it has holes");
  }
  bool may_write = access == Access::kWriteToo;
  const auto map = [&](int protection) {
    return mmap(nullptr, bytes, protection, MAP_SHARED, fd.get(), 0);
  };
  void* data = may_write ? map(PROT_READ | PROT_WRITE) : MAP_FAILED;
  if (data == MAP_FAILED) {
    may_write = false;
    data = map(PROT_READ);
  }
  if (data == MAP_FAILED) {
    return SystemError(absl::StrCat("mmap of ", bytes, " bytes of shared memory"));
  }
  fd.Reset();  // before the long part
  std::shared_ptr<MemorySegment> segment(
      new MemorySegment(UniqueFd(), static_cast<std::byte*>(data), bytes, may_write));
  if (absl::Status there = Populate({segment->data_, bytes}, go_on); !there.ok()) return there;
  return segment;
}

std::optional<std::size_t> MemorySegment::OffsetOf(std::span<const std::byte> memory) const {
  const std::less_equal<> at_most;
  if (!at_most(data_, memory.data()) || !at_most(memory.data() + memory.size(), data_ + bytes_)) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(memory.data() - data_);
}

absl::Status CheckPart(const MemorySegment& segment, std::uint64_t offset, std::uint64_t bytes,
                       const std::string& what) {
  const std::uint64_t size = segment.bytes();
  if (bytes <= size && offset <= size - bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": bytes ", offset, " and the ", bytes,
                                                 " that follow; the segment has ", size));
}

absl::StatusOr<PayloadRef> PartOf(const std::shared_ptr<const MemorySegment>& segment,
                                  std::uint64_t offset, std::uint64_t bytes,
                                  const std::string& what) {
  if (absl::Status inside = CheckPart(*segment, offset, bytes, what); !inside.ok()) return inside;
  return std::make_shared<const SharedPayload>(
      segment, segment->content().subspan(static_cast<std::size_t>(offset),
                                          static_cast<std::size_t>(bytes)));
}

}  // namespace gradwire::wire

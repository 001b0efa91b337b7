#include "tests/cuda/emulation/arena.h"

#include <sys/mman.h>

#include <cstring>
#include <iterator>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) static_cast<void>(0)
#endif

namespace gradwire::emulation {
namespace {

constexpr std::size_t kAlignment = 256;  // as cudaMalloc's

std::size_t RoundUp(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Arena::Arena(std::size_t bytes) : bytes_(bytes) {
  base_ = static_cast<char*>(
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASAN_POISON_MEMORY_REGION(base_, bytes_);
}

Arena::~Arena() {
  ASAN_UNPOISON_MEMORY_REGION(base_, bytes_);
  munmap(base_, bytes_);
}

// The first gap that is large enough, with kAlignment bytes before the next block.
void* Arena::Reserve(std::size_t bytes) {
  const std::size_t wanted = RoundUp(bytes) + kAlignment;
  char* at = base_;
  for (const auto& [block, what] : blocks_) {
    auto* begin = static_cast<char*>(block);
    if (static_cast<std::size_t>(begin - at) >= wanted) break;
    at = begin + RoundUp(what.bytes) + kAlignment;
  }
  if (static_cast<std::size_t>(base_ + bytes_ - at) < wanted) return nullptr;
  blocks_[at] = {bytes, false};
  return at;
}

void Arena::Open(void* memory) {
  Block& block = blocks_.at(memory);
  block.open = true;
  ASAN_UNPOISON_MEMORY_REGION(memory, block.bytes);
  std::memset(memory, 0xFF, block.bytes);
}

void Arena::Close(void* memory) {
  const Block& block = blocks_.at(memory);
  if (block.open) std::memset(memory, 0xFF, block.bytes);
  ASAN_POISON_MEMORY_REGION(memory, block.bytes);
  blocks_.erase(memory);
}

bool Arena::IsOpen(const void* from, std::size_t bytes) const {
  auto after = blocks_.upper_bound(const_cast<void*>(from));
  if (after == blocks_.begin()) return false;
  const auto& [block, what] = *std::prev(after);
  const auto offset =
      static_cast<std::size_t>(static_cast<const char*>(from) - static_cast<const char*>(block));
  return what.open && offset <= what.bytes && bytes <= what.bytes - offset;
}

void Arena::Enter() {
  if (depth_++ == 0) mprotect(base_, bytes_, PROT_READ | PROT_WRITE);
}

void Arena::Leave() {
  if (--depth_ == 0) mprotect(base_, bytes_, PROT_NONE);
}

}  // namespace gradwire::emulation

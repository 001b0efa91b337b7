#include "client/memory/gradient_memory.h"

#include <algorithm>
#include <new>
#include <utility>

#include "client/memory/forked_memory.h"
#include "client/memory/shared_pages.h"
#include "proto/wire/memory_layout.h"

namespace gradwire::client {

// Without a memfd (an old kernel, no memory left for it) the gradients lie on the heap, and
// payloads are encoded as usual. 64 bytes are the alignment of torch's allocator.
std::shared_ptr<std::byte> GradientMemory::Allocate(std::size_t bytes) {
  auto created = wire::MemorySegment::Create("gradwire-gradients",
                                             wire::WholePages(std::max<std::size_t>(bytes, 1)),
                                             wire::MemorySegment::Others::kMayWrite);
  if (!created.ok()) {
    constexpr std::align_val_t kAlignment{64};
    auto* memory = static_cast<std::byte*>(::operator new(bytes, kAlignment));
    return {memory, [](std::byte* pointer) { ::operator delete(pointer, kAlignment); }};
  }
  std::shared_ptr<wire::MemorySegment> segment = *std::move(created);
  const auto number =
      ForkedMemory::Global().Add({.memory = segment->writable(), .segment = segment, .offset = 0},
                                 [] { return absl::OkStatus(); });
  {
    MutexLock lock(mutex_);
    Add(segment);
  }
  std::byte* const memory = segment->writable().data();
  return {memory, [segment = std::move(segment), number = *number](std::byte*) {
            ForkedMemory::Global().Remove(number, [] { return absl::OkStatus(); }).IgnoreError();
          }};
}

absl::StatusOr<std::shared_ptr<void>> GradientMemory::Share(std::span<std::byte> memory,
                                                            std::shared_ptr<void> owner) {
  auto shared = SharedPages::Share(memory, std::move(owner));
  if (!shared.ok()) return shared.status();
  {
    MutexLock lock(mutex_);
    Add((*shared)->segment());
    std::erase_if(shared_, [](const auto& pages) { return pages.expired(); });
    shared_.push_back(*shared);
  }
  // A bucket in flight may keep the object, but not the sharing.
  void* const data = memory.data();
  return std::shared_ptr<void>(data, [pages = *std::move(shared)](void*) { pages->MakePrivate(); });
}

std::shared_ptr<SharedPages> GradientMemory::PagesOf(std::span<const std::byte> part) const {
  MutexLock lock(mutex_);
  for (const auto& one : shared_) {
    auto pages = one.lock();
    if (pages != nullptr && !pages->is_private() && pages->Alias(part)) return pages;
  }
  return nullptr;
}

void GradientMemory::Add(const std::shared_ptr<wire::MemorySegment>& segment) {
  std::erase_if(segments_, [](const auto& one) { return one.expired(); });
  segments_.push_back(segment);
  ++version_;
}

std::vector<std::shared_ptr<wire::MemorySegment>> GradientMemory::segments() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<wire::MemorySegment>> alive;
  for (const auto& segment : segments_) {
    if (auto one = segment.lock()) alive.push_back(std::move(one));
  }
  return alive;
}

std::uint64_t GradientMemory::version() const {
  MutexLock lock(mutex_);
  return version_;
}

}  // namespace gradwire::client

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
  std::byte* const memory = segment->writable().data();
  auto allocated = std::make_shared<const Segment>(std::move(segment));
  {
    MutexLock lock(mutex_);
    std::erase_if(allocated_, [](const auto& one) { return one.expired(); });
    allocated_.push_back(allocated);
    ++version_;
  }
  return {memory, [allocated = std::move(allocated), number = *number](std::byte*) {
            ForkedMemory::Global().Remove(number, [] { return absl::OkStatus(); }).IgnoreError();
          }};
}

absl::StatusOr<std::shared_ptr<void>> GradientMemory::Share(std::span<std::byte> memory,
                                                            std::shared_ptr<void> owner) {
  auto shared = SharedPages::Share(memory, std::move(owner));
  if (!shared.ok()) return shared.status();
  {
    MutexLock lock(mutex_);
    std::erase_if(shared_, [](const auto& pages) { return pages.expired(); });
    shared_.push_back(*shared);
    ++version_;
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

std::vector<std::shared_ptr<wire::MemorySegment>> GradientMemory::segments() const {
  MutexLock lock(mutex_);
  std::vector<Segment> alive;
  for (const auto& allocated : allocated_) {
    if (const auto one = allocated.lock()) alive.push_back(*one);
  }
  for (const auto& shared : shared_) {
    if (const auto one = shared.lock()) alive.push_back(one->segment());
  }
  return alive;
}

std::uint64_t GradientMemory::version() const {
  MutexLock lock(mutex_);
  return version_;
}

BucketAlias::BucketAlias(const GradientMemory& memory, GradBucket& bucket) {
  TensorView buffer = bucket.buffer();
  if (buffer.device.kind != DeviceKind::kCpu) return;
  own_ = {static_cast<const std::byte*>(buffer.data), buffer.bytes()};
  pages_ = memory.PagesOf(own_);
  if (pages_ == nullptr) return;
  pages_->Gather(own_);
  buffer.data = pages_->Alias(own_)->data();
  bucket.set_buffer(buffer).IgnoreError();  // the same elements
}

void BucketAlias::Scatter() const {
  if (pages_ != nullptr) pages_->Scatter(own_);
}

}  // namespace gradwire::client

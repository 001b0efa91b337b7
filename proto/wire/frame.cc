#include "proto/wire/frame.h"

#include <xxhash.h>

#include <algorithm>

namespace gradwire::wire {
namespace {

struct StateDeleter {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

std::uint64_t Digest(const Payload* payload) {
  if (payload == nullptr || payload->pieces().empty()) return XXH3_64bits(nullptr, 0);
  const auto pieces = payload->pieces();
  if (pieces.size() == 1) return XXH3_64bits(pieces[0].data(), pieces[0].size());
  thread_local const std::unique_ptr<XXH3_state_t, StateDeleter> state(XXH3_createState());
  XXH3_64bits_reset(state.get());
  for (const auto& piece : pieces) XXH3_64bits_update(state.get(), piece.data(), piece.size());
  return XXH3_64bits_digest(state.get());
}

ChunkLayout::ChunkLayout(const RoundPlan& plan, std::size_t chunk_bytes)
    : plan_(plan), chunk_bytes_(chunk_bytes) {
  for (const Segment& segment : plan_.segments) {
    first_chunk_.push_back(chunk_count_);
    chunk_count_ += static_cast<std::uint32_t>((segment.bytes() + chunk_bytes - 1) / chunk_bytes);
  }
}

ElementRange ChunkLayout::Range(std::uint32_t chunk) const {
  const auto next = std::upper_bound(first_chunk_.begin(), first_chunk_.end(), chunk);
  const auto index = static_cast<std::size_t>(next - first_chunk_.begin()) - 1;
  const Segment& segment = plan_.segments[index];
  const std::size_t step = chunk_bytes_ / ByteSize(segment.dtype);
  const std::size_t begin = (chunk - first_chunk_[index]) * step;
  return {.segment = index, .begin = begin, .end = std::min(begin + step, segment.numel)};
}

const Segment& ChunkLayout::segment(std::uint32_t chunk) const {
  return plan_.segments[Range(chunk).segment];
}

std::size_t ChunkLayout::ChunkBytes(std::uint32_t chunk) const {
  const ElementRange range = Range(chunk);
  return range.numel() * ByteSize(plan_.segments[range.segment].dtype);
}

}  // namespace gradwire::wire

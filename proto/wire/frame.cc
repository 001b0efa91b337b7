#include "proto/wire/frame.h"

#include <algorithm>
#include <tuple>

#include "proto/wire/digest.h"

namespace gradwire::wire {
namespace {

std::uint64_t Compute(std::span<const std::span<const std::byte>> pieces) {
  if (pieces.empty()) return DigestOf({});
  if (pieces.size() == 1) return DigestOf(pieces[0]);
  thread_local Digester digester;
  digester.Reset();
  for (const auto& piece : pieces) digester.Update(piece);
  return digester.Finish();
}

}  // namespace

bool HasDigest(const Header& header) {
  if (const auto* contribution = std::get_if<Contribution>(&header)) {
    return contribution->digest.has_value();
  }
  const auto* announce = std::get_if<Announce>(&header);
  return announce != nullptr && announce->digest.has_value();
}

std::uint64_t Payload::digest() const {
  if (has_digest_.load(std::memory_order_acquire)) return digest_.load(std::memory_order_relaxed);
  const std::uint64_t value = Compute(pieces());
  SetDigest(value);  // two threads at once set the same
  return value;
}

std::shared_ptr<const Payload> Payload::Cut(std::size_t /*offset*/, std::size_t /*bytes*/) const {
  return nullptr;
}

void Payload::SetDigest(std::uint64_t value) const {
  // The release pairs with digest()'s acquire: who sees the flag sees the value.
  digest_.store(value, std::memory_order_relaxed);
  has_digest_.store(true, std::memory_order_release);
}

std::uint64_t Digest(const Payload* payload) {
  return payload == nullptr ? DigestOf({}) : payload->digest();
}

ChunkLayout::ChunkLayout(const RoundPlan& plan, std::size_t chunk_bytes, Slice slice)
    : plan_(plan), chunk_bytes_(chunk_bytes), slice_(slice) {
  for (std::size_t s = 0; s < plan_.segments.size(); ++s) {
    // A segment starts with a chunk of its own, so that each chunk has one dtype and one operation.
    const Segment& segment = plan_.segments[s];
    first_chunk_.push_back(chunk_count_);
    if (segment.op == ReduceOp::kOrthonormalizedSum) {
      CutMatrices(s);
    } else {
      const auto [begin, end] = slice_.Of(segment.numel);
      const std::size_t bytes = (end - begin) * ByteSize(segment.dtype);
      chunk_count_ += static_cast<std::uint32_t>((bytes + chunk_bytes - 1) / chunk_bytes);
    }
  }
}

// A matrix is orthonormalized whole. So a unit has as many whole matrices as fit one chunk, or one
// larger matrix, which travels in several chunks.
void ChunkLayout::CutMatrices(std::size_t index) {
  const Segment& segment = plan_.segments[index];
  const std::size_t width = ByteSize(segment.dtype);
  MatrixUnit unit{.unit = {.first = chunk_count_}, .range = {.segment = index}};
  const auto close = [&](std::size_t next_matrix) {
    const std::size_t bytes = unit.range.numel() * width;
    if (bytes > 0) {
      unit.unit.first = chunk_count_;
      unit.unit.count = static_cast<std::uint32_t>((bytes + chunk_bytes_ - 1) / chunk_bytes_);
      chunk_count_ += unit.unit.count;
      matrix_units_.push_back(unit);
    }
    unit.range.begin = unit.range.end;
    unit.first_matrix = next_matrix;
    unit.matrices = 0;
  };
  for (std::size_t m = 0; m < segment.matrices.size(); ++m) {
    const std::size_t numel = segment.matrices[m].numel();
    if (unit.matrices > 0 && (unit.range.numel() + numel) * width > chunk_bytes_) close(m);
    unit.range.end += numel;
    ++unit.matrices;
  }
  close(segment.matrices.size());
}

const ChunkLayout::MatrixUnit* ChunkLayout::FindMatrixUnit(std::uint32_t chunk) const {
  const auto next = std::upper_bound(
      matrix_units_.begin(), matrix_units_.end(), chunk,
      [](std::uint32_t value, const MatrixUnit& unit) { return value < unit.unit.first; });
  if (next == matrix_units_.begin()) return nullptr;
  const MatrixUnit& found = *std::prev(next);
  return chunk < found.unit.first + found.unit.count ? &found : nullptr;
}

ChunkLayout::Unit ChunkLayout::UnitOf(std::uint32_t chunk) const {
  const MatrixUnit* found = FindMatrixUnit(chunk);
  return found == nullptr ? Unit{.first = chunk, .count = 1} : found->unit;
}

Segment ChunkLayout::UnitSegment(const Unit& unit) const {
  const MatrixUnit* found = FindMatrixUnit(unit.first);
  const Segment& whole = segment(unit.first);
  Segment part{.dtype = whole.dtype, .numel = Range(unit.first).numel(), .op = whole.op};
  if (found == nullptr) return part;
  part.numel = found->range.numel();
  part.epsilon = whole.epsilon;
  const auto begin = whole.matrices.begin() + static_cast<std::ptrdiff_t>(found->first_matrix);
  part.matrices.assign(begin, begin + static_cast<std::ptrdiff_t>(found->matrices));
  return part;
}

ElementRange ChunkLayout::Range(std::uint32_t chunk) const {
  std::size_t index = 0;
  std::size_t origin = 0;
  std::size_t end = 0;
  std::uint32_t first = 0;
  if (const MatrixUnit* found = FindMatrixUnit(chunk)) {
    // These chunks are cut from the unit's first element on, not from the segment's.
    index = found->range.segment;
    origin = found->range.begin;
    end = found->range.end;
    first = found->unit.first;
  } else {
    // An empty segment has the same first chunk as the next one; upper_bound passes over it.
    const auto next = std::upper_bound(first_chunk_.begin(), first_chunk_.end(), chunk);
    index = static_cast<std::size_t>(next - first_chunk_.begin()) - 1;
    first = first_chunk_[index];
    std::tie(origin, end) = slice_.Of(plan_.segments[index].numel);
  }
  const std::size_t step = chunk_bytes_ / ByteSize(plan_.segments[index].dtype);
  const std::size_t begin = origin + (chunk - first) * step;
  return {.segment = index, .begin = begin, .end = std::min(begin + step, end)};
}

const Segment& ChunkLayout::segment(std::uint32_t chunk) const {
  return plan_.segments[Range(chunk).segment];
}

std::size_t ChunkLayout::ChunkBytes(std::uint32_t chunk) const {
  const ElementRange range = Range(chunk);
  return range.numel() * ByteSize(plan_.segments[range.segment].dtype);
}

}  // namespace gradwire::wire

#include "hooks/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "hooks/cpu/kernels.h"
#include "hooks/power_sgd/orthonormalize.h"

namespace gradwire {
namespace {

constexpr std::size_t kStackContributions = 64;

// Bytes of one contribution that are gathered at once where its pieces are cut; and the least that
// must lie in one piece of every contribution to pass pointers instead.
constexpr std::size_t kGatherBytes = 1024;

// A position in one contribution.
struct Cursor {
  Pieces pieces;
  std::size_t piece = 0;
  std::size_t offset = 0;  // in that piece

  void SkipEmptyPieces() {
    while (piece < pieces.size() && offset == pieces[piece].size()) {
      ++piece;
      offset = 0;
    }
  }

  // Bytes that follow in the current piece.
  std::size_t contiguous() const {
    return piece < pieces.size() ? pieces[piece].size() - offset : 0;
  }

  const std::byte* data() const { return pieces[piece].data() + offset; }

  void Advance(std::size_t bytes) {
    offset += bytes;
    SkipEmptyPieces();
  }

  void Gather(std::size_t bytes, std::byte* out) {
    while (bytes > 0) {
      const std::size_t part = std::min(bytes, contiguous());
      std::memcpy(out, data(), part);
      out += part;
      bytes -= part;
      Advance(part);
    }
  }
};

struct Workspace {
  std::span<Cursor> cursors;
  std::span<const void*> srcs;
  std::span<std::byte> gathered;  // kGatherBytes per contribution
};

ReduceOutcome ReduceWith(Workspace work, DType dtype, double divisor, std::size_t numel,
                         std::byte* out) {
  const std::size_t width = ByteSize(dtype);
  ReduceOutcome outcome;
  std::size_t left = numel * width;
  while (left > 0) {
    std::size_t block = left;
    for (const Cursor& cursor : work.cursors) block = std::min(block, cursor.contiguous());
    block -= block % width;
    if (block < std::min(left, kGatherBytes)) block = std::min(left, kGatherBytes);
    for (std::size_t i = 0; i < work.cursors.size(); ++i) {
      Cursor& cursor = work.cursors[i];
      if (cursor.contiguous() >= block) {
        work.srcs[i] = cursor.data();
        cursor.Advance(block);
      } else {
        std::byte* copy = work.gathered.data() + i * kGatherBytes;
        cursor.Gather(block, copy);
        work.srcs[i] = copy;
      }
    }
    const bool finite =
        cpu::Sum(dtype, work.srcs.data(), work.srcs.size(), divisor, out, block / width);
    outcome.finite = outcome.finite && finite;
    out += block;
    left -= block;
  }
  return outcome;
}

}  // namespace

ReduceOutcome Reduce(DType dtype, ReduceOp op, std::size_t numel,
                     std::span<const Pieces> contributions, std::span<std::byte> out) {
  const std::size_t count = contributions.size();
  const double divisor = op == ReduceOp::kMean ? static_cast<double>(count) : 1.0;
  const auto run = [&](Workspace work) {
    for (std::size_t i = 0; i < count; ++i) {
      work.cursors[i] = Cursor{contributions[i]};
      work.cursors[i].SkipEmptyPieces();
    }
    return ReduceWith(work, dtype, divisor, numel, out.data());
  };
  if (count <= kStackContributions) {
    std::array<Cursor, kStackContributions> cursors;
    std::array<const void*, kStackContributions> srcs;
    alignas(64) std::array<std::byte, kStackContributions * kGatherBytes> gathered;
    return run({std::span(cursors).first(count), std::span(srcs).first(count), gathered});
  }
  std::vector<Cursor> cursors(count);
  std::vector<const void*> srcs(count);
  std::vector<std::byte> gathered(count * kGatherBytes);
  return run({cursors, srcs, gathered});
}

ReduceOutcome ReduceOrthonormalized(const Segment& segment, std::span<const Pieces> contributions,
                                    std::span<std::byte> out) {
  thread_local std::vector<std::byte> gathered;
  thread_local std::vector<double> one;
  thread_local std::vector<double> sum;
  gathered.resize(segment.bytes());
  one.resize(segment.numel);
  sum.assign(segment.numel, 0.0);
  for (const Pieces& pieces : contributions) {
    Cursor cursor{pieces};
    cursor.SkipEmptyPieces();
    cursor.Gather(segment.bytes(), gathered.data());
    cpu::Convert(segment.dtype, gathered.data(), DType::kFloat64,
                 reinterpret_cast<std::byte*>(one.data()), segment.numel);
    for (std::size_t i = 0; i < segment.numel; ++i) sum[i] += one[i];
  }
  ReduceOutcome outcome;
  std::span<double> rest = sum;
  for (const MatrixShape& shape : segment.matrices) {
    const bool finite = Orthonormalize(shape, segment.epsilon, rest.first(shape.numel()));
    outcome.finite = outcome.finite && finite;
    rest = rest.subspan(shape.numel());
  }
  cpu::Convert(DType::kFloat64, reinterpret_cast<const std::byte*>(sum.data()), segment.dtype,
               out.data(), segment.numel);
  return outcome;
}

}  // namespace gradwire

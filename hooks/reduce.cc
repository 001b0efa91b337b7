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

// Elements that are cast at once, small enough to be in the first-level cache when they are added.
constexpr std::size_t kCastNumel = 2048;

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

// One contribution on its way into the sum.
struct Source {
  Cursor cursor;
  std::size_t width = 0;      // bytes of an element
  std::byte* cast = nullptr;  // raw: kCastNumel elements of the reduction's dtype
};

struct Workspace {
  std::span<Source> sources;
  std::span<const void*> srcs;
  std::span<std::byte> gathered;  // kGatherBytes per contribution
};

// All are raw and of the dtype that is added in: the division needs no pass of its own.
bool IsSumOfQuotients(DType dtype, double divisor, std::size_t count, const RawContributions& raw) {
  if (dtype != DType::kFloat32 || raw.dtype != dtype || divisor != 1) return false;
  return static_cast<std::size_t>(std::count(raw.is_raw.begin(), raw.is_raw.end(), true)) == count;
}

// Elements of at most `left` that can be added without a copy; kGatherBytes' worth where pieces are
// cut.
std::size_t BlockNumel(std::span<const Source> sources, std::size_t left) {
  std::size_t whole = left;
  std::size_t gathered = left;
  for (const Source& source : sources) {
    whole = std::min(whole, source.cursor.contiguous() / source.width);
    gathered = std::min(gathered, kGatherBytes / source.width);
    if (source.cast == nullptr) continue;
    whole = std::min(whole, kCastNumel);
    gathered = std::min(gathered, kCastNumel);
  }
  return std::max(whole, gathered);
}

// `sink` may be null.
ReduceOutcome ReduceWith(Workspace work, DType dtype, double divisor, std::size_t numel,
                         std::span<std::byte> results, const RawContributions& raw,
                         const ResultSink* sink) {
  const std::size_t most = sink == nullptr ? numel : kSinkBytes / ByteSize(dtype);
  const bool keeps_all = results.size() >= numel * ByteSize(dtype);
  std::byte* out = results.data();
  const bool quotients = IsSumOfQuotients(dtype, divisor, work.sources.size(), raw);
  ReduceOutcome outcome;
  for (std::size_t left = numel; left > 0;) {
    const std::size_t block = BlockNumel(work.sources, std::min(left, most));
    for (std::size_t i = 0; i < work.sources.size(); ++i) {
      Source& source = work.sources[i];
      const std::size_t bytes = block * source.width;
      const std::byte* data = nullptr;
      if (source.cursor.contiguous() >= bytes) {
        data = source.cursor.data();
        source.cursor.Advance(bytes);
      } else {
        std::byte* copy = work.gathered.data() + i * kGatherBytes;
        source.cursor.Gather(bytes, copy);
        data = copy;
      }
      work.srcs[i] = data;
      if (source.cast == nullptr) continue;
      cpu::ConvertAndDivide(raw.dtype, data, dtype, source.cast, block, raw.divisor);
      work.srcs[i] = source.cast;
    }
    const bool finite =
        quotients ? cpu::SumQuotients(work.srcs.data(), work.srcs.size(), raw.divisor, out, block)
                  : cpu::Sum(dtype, work.srcs.data(), work.srcs.size(), divisor, out, block);
    outcome.finite = outcome.finite && finite;
    const std::size_t bytes = block * ByteSize(dtype);
    if (sink != nullptr) (*sink)(numel - left, {out, bytes});
    if (keeps_all) out += bytes;
    left -= block;
  }
  return outcome;
}

ReduceOutcome ReduceTo(DType dtype, ReduceOp op, std::size_t numel,
                       std::span<const Pieces> contributions, std::span<std::byte> out,
                       const RawContributions& raw, const ResultSink* sink) {
  const std::size_t count = contributions.size();
  const double divisor = op == ReduceOp::kMean ? static_cast<double>(count) : 1.0;
  thread_local std::vector<std::byte> casts;
  const std::size_t cast_bytes = kCastNumel * ByteSize(dtype);
  const bool casts_some = !raw.is_raw.empty() && !IsSumOfQuotients(dtype, divisor, count, raw);
  if (casts_some) casts.resize(count * cast_bytes);
  const auto run = [&](Workspace work) {
    for (std::size_t i = 0; i < count; ++i) {
      Source& source = work.sources[i];
      source.cursor = Cursor{contributions[i]};
      source.cursor.SkipEmptyPieces();
      source.width = ByteSize(raw.raw(i) ? raw.dtype : dtype);
      source.cast = casts_some && raw.raw(i) ? casts.data() + i * cast_bytes : nullptr;
    }
    return ReduceWith(work, dtype, divisor, numel, out, raw, sink);
  };
  if (count <= kStackContributions) {
    std::array<Source, kStackContributions> sources;
    std::array<const void*, kStackContributions> srcs;
    alignas(64) std::array<std::byte, kStackContributions * kGatherBytes> gathered;
    return run({std::span(sources).first(count), std::span(srcs).first(count), gathered});
  }
  std::vector<Source> sources(count);
  std::vector<const void*> srcs(count);
  std::vector<std::byte> gathered(count * kGatherBytes);
  return run({sources, srcs, gathered});
}

}  // namespace

ReduceOutcome Reduce(DType dtype, ReduceOp op, std::size_t numel,
                     std::span<const Pieces> contributions, std::span<std::byte> out,
                     const RawContributions& raw) {
  return ReduceTo(dtype, op, numel, contributions, out, raw, nullptr);
}

ReduceOutcome ReduceInto(DType dtype, ReduceOp op, std::size_t numel,
                         std::span<const Pieces> contributions, std::span<std::byte> out,
                         const RawContributions& raw, ResultSink sink) {
  return ReduceTo(dtype, op, numel, contributions, out, raw, &sink);
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

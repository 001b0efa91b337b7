#include "hooks/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "hooks/cpu/kernels.h"
#include "hooks/power_sgd/column_order.h"
#include "hooks/power_sgd/orthonormalize.h"

namespace gradwire {
namespace {

constexpr std::size_t kStackContributions = 64;

// Where the pieces of a contribution are cut, this many bytes are copied together. If every
// contribution has at least as many in one piece, pointers are passed instead.
constexpr std::size_t kGatherBytes = 1024;

// Elements that are cast at once, small enough to be in the first-level cache when they are added.
constexpr std::size_t kCastNumel = 2048;
static_assert(kCastNumel * sizeof(double) == kCastScratchBytes);

// This thread's memory for one call. Memory above kKeptScratchBytes is freed after the call,
// because matrices may be as large as a parameter, and threads live as long as the daemon.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) {
    const std::size_t numel = (bytes + sizeof(double) - 1) / sizeof(double);
    if (numel <= numel_) return;
    memory_.reset();  // before there are two
    numel_ = 0;
    memory_ = std::make_unique_for_overwrite<double[]>(numel);
    numel_ = numel;
  }
  ~Scratch() {
    if (numel_ * sizeof(double) <= kKeptScratchBytes) return;
    memory_.reset();
    numel_ = 0;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  double* doubles() { return memory_.get(); }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(memory_.get()); }

 private:
  static thread_local std::unique_ptr<double[]> memory_;
  static thread_local std::size_t numel_;
};

thread_local std::unique_ptr<double[]> Scratch::memory_;
thread_local std::size_t Scratch::numel_ = 0;

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

// Whether all contributions are raw float32 gradients for a float32 result: then one kernel divides
// and adds, and no quotient is stored. A mean divides the total too and does not qualify.
bool IsSumOfQuotients(DType dtype, double divisor, std::size_t count, const RawContributions& raw) {
  if (dtype != DType::kFloat32 || raw.dtype != dtype || divisor != 1) return false;
  return static_cast<std::size_t>(std::count(raw.is_raw.begin(), raw.is_raw.end(), true)) == count;
}

// Returns how many elements, at most `left`, can be added without a copy; kGatherBytes' worth where
// pieces are cut.
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
  // If `whole` is larger, each contribution has the block in one piece; if not, the block fits into
  // kGatherBytes.
  return std::max(whole, gathered);
}

void NoteSources(const Workspace& work, DType dtype, std::size_t begin, std::size_t block,
                 ReduceOutcome& outcome) {
  outcome.finite = false;
  for (std::size_t i = 0; i < work.srcs.size(); ++i) {
    NoteNonFinite(i, begin, dtype, work.srcs[i], block, outcome.sources);
  }
}

// Sums block by block in rank order. A contribution comes in pieces (gRPC's slices), which are cut
// at different places for each member, so a block ends at the next cut of any of them. Where cuts
// are closer than kGatherBytes, the pieces are copied together instead. `sink` may be null.
ReduceOutcome ReduceWith(Workspace work, DType dtype, double divisor, std::size_t numel,
                         std::span<std::byte> results, const RawContributions& raw,
                         const ResultSink* sink) {
  // A sink takes at most kSinkBytes at a time, so that it finds them in the first-level cache.
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
    // Before the sink, which may overwrite the contributions.
    if (!finite) NoteSources(work, dtype, numel - left, block, outcome);
    const std::size_t bytes = block * ByteSize(dtype);
    if (sink != nullptr) (*sink)(numel - left, {out, bytes});
    // Without room for all results each block overwrites the last one, which the sink has consumed.
    if (keeps_all) out += bytes;
    left -= block;
  }
  return outcome;
}

ReduceOutcome ReduceTo(DType dtype, ReduceOp op, std::size_t numel,
                       std::span<const Pieces> contributions, std::span<std::byte> out,
                       const RawContributions& raw, double weight, const ResultSink* sink) {
  const std::size_t count = contributions.size();
  const double mean = weight > 0 ? weight : static_cast<double>(count);
  // Contributions to a sum are divided before they are added, if at all; a mean is divided
  // afterwards.
  const double divisor = op == ReduceOp::kMean ? mean : 1.0;
  const std::size_t cast_bytes = kCastNumel * ByteSize(dtype);
  const bool casts_some = !raw.is_raw.empty() && !IsSumOfQuotients(dtype, divisor, count, raw);
  Scratch casts(casts_some ? count * cast_bytes : 0);
  const auto run = [&](Workspace work) {
    for (std::size_t i = 0; i < count; ++i) {
      Source& source = work.sources[i];
      source.cursor = Cursor{contributions[i]};
      source.cursor.SkipEmptyPieces();
      source.width = ByteSize(raw.raw(i) ? raw.dtype : dtype);
      source.cast = casts_some && raw.raw(i) ? casts.bytes() + i * cast_bytes : nullptr;
    }
    return ReduceWith(work, dtype, divisor, numel, out, raw, sink);
  };
  // The usual world sizes need no allocation.
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

// Adds what follows in a contribution, a row-major matrix, to the column-major `sum`.
void AddTo(std::span<double> sum, MatrixShape shape, DType dtype, Cursor& cursor) {
  std::array<std::byte, kReorderedNumel * sizeof(double)> gathered;
  std::array<double, kReorderedNumel> values;
  for (std::size_t first = 0; first < sum.size(); first += kReorderedNumel) {
    const std::size_t count = std::min(kReorderedNumel, sum.size() - first);
    cursor.Gather(count * ByteSize(dtype), gathered.data());
    cpu::Convert(dtype, gathered.data(), DType::kFloat64, values.data(), count);
    VisitByColumn(shape, first, count,
                  [&](std::size_t i, std::size_t at) { sum[at] += values[i]; });
  }
}

// Writes the column-major `sum` as a row-major matrix of `dtype`.
void WriteRows(std::span<const double> sum, MatrixShape shape, DType dtype, std::byte* out) {
  std::array<double, kReorderedNumel> values;
  for (std::size_t first = 0; first < sum.size(); first += kReorderedNumel) {
    const std::size_t count = std::min(kReorderedNumel, sum.size() - first);
    VisitByColumn(shape, first, count, [&](std::size_t i, std::size_t at) { values[i] = sum[at]; });
    cpu::Convert(DType::kFloat64, values.data(), dtype, out + first * ByteSize(dtype), count);
  }
}

}  // namespace

ReduceOutcome Reduce(DType dtype, ReduceOp op, std::size_t numel,
                     std::span<const Pieces> contributions, std::span<std::byte> out,
                     const RawContributions& raw, double weight) {
  return ReduceTo(dtype, op, numel, contributions, out, raw, weight, nullptr);
}

ReduceOutcome ReduceInto(DType dtype, ReduceOp op, std::size_t numel,
                         std::span<const Pieces> contributions, std::span<std::byte> out,
                         const RawContributions& raw, double weight, ResultSink sink) {
  return ReduceTo(dtype, op, numel, contributions, out, raw, weight, &sink);
}

// The sum stays in fp64 until it is orthonormal, so a sum beyond the wire dtype's range does no
// harm. Each matrix is handled by itself, and the scratch memory holds the largest one.
ReduceOutcome ReduceOrthonormalized(const Segment& segment, std::span<const Pieces> contributions,
                                    std::span<std::byte> out) {
  std::size_t largest = 0;
  for (const MatrixShape& shape : segment.matrices) largest = std::max(largest, shape.numel());
  Scratch scratch(largest * sizeof(double));
  const std::size_t count = contributions.size();
  std::array<Cursor, kStackContributions> few;
  std::vector<Cursor> many(count > kStackContributions ? count : 0);
  const std::span<Cursor> cursors =
      std::span<Cursor>(many.empty() ? few.data() : many.data(), count);
  for (std::size_t i = 0; i < count; ++i) {
    cursors[i] = Cursor{contributions[i]};
    cursors[i].SkipEmptyPieces();
  }
  ReduceOutcome outcome;
  std::byte* to = out.data();
  for (const MatrixShape& shape : segment.matrices) {
    const std::span<double> sum(scratch.doubles(), shape.numel());
    std::fill(sum.begin(), sum.end(), 0.0);
    // In rank order, like every sum, so that the bits do not depend on the order of arrival.
    for (Cursor& cursor : cursors) AddTo(sum, shape, segment.dtype, cursor);
    const bool finite = Orthonormalize(shape, segment.epsilon, sum);
    outcome.finite = outcome.finite && finite;
    WriteRows(sum, shape, segment.dtype, to);
    to += sum.size() * ByteSize(segment.dtype);
  }
  if (!outcome.finite) {
    outcome.sources = FindNonFinite(segment.dtype, segment.numel, contributions);
  }
  return outcome;
}

}  // namespace gradwire

// The coordinator's arithmetic on the host: N contributions of one chunk to one result.
//
// Sums are taken in rank order, in fp64 for float32 and float64 and in fp32 for float16 and
// bfloat16, and rounded once to the segment's dtype. The bits do not depend on arrival order, chunk
// size, SIMD width, or how the inputs are cut into pieces.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gradwire/hooks/round_plan.h"
#include "hooks/non_finite.h"
#include "hooks/pieces.h"
#include "hooks/raw_contributions.h"

namespace gradwire {

struct ReduceOutcome {
  bool finite = true;  // no NaN or infinity among the results
  // Not finite: whose values. They are looked for only then.
  NonFiniteSources sources{};
};

// Is given results, in order, as soon as they are computed: elements [begin, begin + …) of the
// reduction, in its dtype. Their contributions are not read again.
using ResultSink = absl::FunctionRef<void(std::size_t begin, std::span<const std::byte> results)>;

// What a thread that reduces keeps between calls, at most. During a call it may need more:
// kCastScratchBytes for each contribution that is raw, and 8 bytes for each element of the largest
// matrix.
inline constexpr std::size_t kKeptScratchBytes = std::size_t{4} << 20;
inline constexpr std::size_t kCastScratchBytes = std::size_t{16} << 10;

// For kSum and kMean: reduces `numel` elements of `dtype`. `contributions` are in rank order, 1 or
// more, each of exactly numel elements of its dtype (the caller has checked); `out` holds as many
// of `dtype`. kMean divides by `weight`: of all contributors together, 0: their number.
// Thread-safe, allocates nothing on the heap for up to 64 finite contributions of which none is
// raw.
ReduceOutcome Reduce(DType dtype, ReduceOp op, std::size_t numel,
                     std::span<const Pieces> contributions, std::span<std::byte> out,
                     const RawContributions& raw = {}, double weight = 0);

// The same, with a sink that is called for kSinkBytes of results at most: they are in the
// first-level cache. `out` holds all results, or kSinkBytes and only those that the sink is given.
inline constexpr std::size_t kSinkBytes = std::size_t{16} << 10;
ReduceOutcome ReduceInto(DType dtype, ReduceOp op, std::size_t numel,
                         std::span<const Pieces> contributions, std::span<std::byte> out,
                         const RawContributions& raw, double weight, ResultSink sink);

// For kOrthonormalizedSum: `segment` as a plan has it, or with fewer of its matrices. The sum is
// taken in fp64 in rank order and stays unrounded until its columns are orthonormal. Thread-safe.
ReduceOutcome ReduceOrthonormalized(const Segment& segment, std::span<const Pieces> contributions,
                                    std::span<std::byte> out);

}  // namespace gradwire

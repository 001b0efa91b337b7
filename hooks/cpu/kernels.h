// The low-level loops, with run-time dispatch over Highway's targets.
//
// Every function takes unaligned pointers. Thread-safe, no allocation. Input and output may be the
// same memory only where said. Rounding is to nearest, ties to even; infinities and subnormals are
// kept (the functions expect the processor's default modes: no flush to zero). Every target gives
// the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/hooks/dtype.h"

namespace gradwire::cpu {

// dst[i] = to(src[i]), rounded once. Any pair of dtypes; equal ones copy. No overlap. A NaN keeps
// its sign and the upper bits of its payload and becomes quiet; only bfloat16 to float32, which
// adds 16 zero bits, leaves a signalling one as it is.
void Convert(DType from, const void* src, DType to, void* dst, std::size_t numel);

// Convert for a large `dst` that is not read soon. Copies, and casts of 16 bits to float32, use
// non-temporal stores.
void ConvertStreaming(DType from, const void* src, DType to, void* dst, std::size_t numel);

// dst[i] = round(to(src[i]) / divisor): first the cast is rounded to `to`, then the quotient, as
// torch's casting hooks do, with the bits of a true division in fp64 for float64 and in fp32 for
// the others. For divisors up to 2048 that is the correctly rounded quotient in `to`; the divisor
// itself is only ever rounded to fp32. divisor >= 1; 1 converts. src may equal dst when the dtypes
// are equal.
void ConvertAndDivide(DType from, const void* src, DType to, void* dst, std::size_t numel,
                      double divisor);

// dst[i] = round((srcs[0][i] + srcs[1][i] + ...) / divisor): added from left to right, and divided,
// in fp64 for float32 and float64 and in fp32 for float16 and bfloat16; then rounded to `dtype`.
// Two sources give the dtype's own addition, correctly rounded. divisor == 1 leaves the sum; count
// >= 1. dst may equal one of srcs. A NaN result is always the positive quiet NaN without payload.
// Returns whether every result is finite.
bool Sum(DType dtype, const void* const* srcs, std::size_t count, double divisor, void* dst,
         std::size_t numel);

// Sum of float32 sources, each of which is divided first: dst[i] = round(round(srcs[0][i] /
// divisor) + …), with the bits of ConvertAndDivide and then Sum, in one pass. divisor >= 1.
bool SumQuotients(const void* const* srcs, std::size_t count, double divisor, void* dst,
                  std::size_t numel);

// Highway targets that this machine can run, best first, by name; and a way to run the functions
// above on one of them (tests and benchmarks). 0 restores the best.
struct Target {
  std::int64_t id;
  std::string name;
};
std::vector<Target> SupportedTargets();
void SetTargetForTesting(std::int64_t id);

}  // namespace gradwire::cpu

// The low-level loops, with run-time dispatch over the instruction sets that Highway knows.
//
// Every function takes unaligned pointers. Thread-safe, no allocation. Input and output may be the
// same memory only where said. NaN stays NaN (quiet), infinities and subnormals are kept, rounding
// is to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/hooks/dtype.h"

namespace gradwire::cpu {

// dst[i] = to(src[i]). Any pair of dtypes; equal ones copy. No overlap.
void Convert(DType from, const void* src, DType to, void* dst, std::size_t numel);

// dst[i] = round(to(src[i]) / divisor), the division in `to`'s own precision: first the cast is
// rounded, then the quotient, as torch's casting hooks do. For from == to this is a true division.
// divisor >= 1. src may equal dst when the dtypes are equal.
void ConvertAndDivide(DType from, const void* src, DType to, void* dst, std::size_t numel,
                      double divisor);

// dst[i] = round((srcs[0][i] + srcs[1][i] + ...) / divisor), added in order in fp64, rounded once to
// `dtype`. divisor == 1 leaves the sum. dst may equal one of srcs. Returns whether every result is
// finite.
bool Sum(DType dtype, const void* const* srcs, std::size_t count, double divisor, void* dst,
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

// The arithmetic on large arrays, as one table of functions for each kind of memory. Hooks and
// reducers are given a table and call nothing else on gradients, so that they are the same objects
// wherever the gradients lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/hooks/dtype.h"
#include "gradwire/hooks/round_plan.h"
#include "hooks/cpu/low_rank.h"

namespace gradwire {

// Where the arrays lie that a table's functions take.
enum class MemoryKind : std::uint8_t {
  kHost = 1,
};

// PowerSGD's passes over a matrix of T. The contracts are those of hooks/cpu/low_rank.h.
template <class T>
struct LowRankKernels {
  void (*add_and_multiply)(cpu::LowRankShape shape, T* matrix, const T* residual, const T* q, T* p);
  void (*transpose_multiply)(cpu::LowRankShape shape, const T* matrix, const T* p, T* q);
  void (*reconstruct_and_subtract)(cpu::LowRankShape shape, T* matrix, const T* p, const T* q,
                                   T* residual);
  void (*add)(std::size_t numel, T* into, const T* from);
};

// Every entry is set. The functions are thread-safe; their contracts, and the bits that they give,
// are those of hooks/cpu/kernels.h and hooks/power_sgd/orthonormalize.h.
struct Kernels {
  void (*convert)(DType from, const void* src, DType to, void* dst, std::size_t numel);
  void (*convert_streaming)(DType from, const void* src, DType to, void* dst, std::size_t numel);
  void (*convert_and_divide)(DType from, const void* src, DType to, void* dst, std::size_t numel,
                             double divisor);
  bool (*sum)(DType dtype, const void* const* srcs, std::size_t count, double divisor, void* dst,
              std::size_t numel);
  bool (*sum_quotients)(const void* const* srcs, std::size_t count, double divisor, void* dst,
                        std::size_t numel);
  bool (*orthonormalize)(MatrixShape shape, double epsilon, std::span<double> matrix);
  LowRankKernels<float> floats;
  LowRankKernels<double> doubles;

  template <class T>
  const LowRankKernels<T>& low_rank() const;
};

template <>
inline const LowRankKernels<float>& Kernels::low_rank<float>() const {
  return floats;
}
template <>
inline const LowRankKernels<double>& Kernels::low_rank<double>() const {
  return doubles;
}

// The table lives as long as the process.
const Kernels& KernelsFor(MemoryKind kind);

}  // namespace gradwire

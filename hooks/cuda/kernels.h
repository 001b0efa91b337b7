// What starts the kernels. The contracts are those of hooks/device.h; pointers are aligned to their
// elements. Everything goes to the stream and uses no other memory than the stream's scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hooks/cuda/stream.h"
#include "hooks/device.h"

namespace gradwire::cuda {

// convert.cu
void Convert(Stream& stream, DType from, const void* src, DType to, void* dst, std::size_t numel);
void ConvertAndDivide(Stream& stream, DType from, const void* src, DType to, void* dst,
                      std::size_t numel, double divisor);

// sum.cu
void Sum(Stream& stream, DType dtype, std::span<const void* const> srcs, double divisor, void* dst,
         std::size_t numel, std::uint32_t* not_finite);
void SumQuotients(Stream& stream, std::span<const void* const> srcs, double divisor, void* dst,
                  std::size_t numel, std::uint32_t* not_finite);

// products.cu
template <class T>
void AddAndMultiply(Stream& stream, const ProductOperands<T>& operands);
template <class T>
void TransposeMultiply(Stream& stream, const TransposedOperands<T>& operands);

// reconstruct.cu
template <class T>
void ReconstructAndSubtract(Stream& stream, const ReconstructOperands<T>& operands);

// factors.cu
template <class T>
void Orthonormalize(Stream& stream, double epsilon, std::span<const FactorOperands<T>> factors);
template <class T>
void Transpose(Stream& stream, std::span<const FactorOperands<T>> factors);

// elementwise.cu
template <class T>
void Add(Stream& stream, std::size_t numel, T* into, const T* from);
template <class T>
void Scale(Stream& stream, std::size_t numel, T* values, double factor);
template <class T>
void AddSquares(Stream& stream, std::size_t numel, const T* values, double* sum);
template <class T>
void RoundTo(Stream& stream, DType wire, std::size_t numel, T* values);
template <class T>
void TakeResults(Stream& stream, DType wire, const void* in, std::size_t numel, T* values,
                 ResidualOf of, T* residual);

// ---- What launchers share

inline std::size_t CeilDiv(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// Blocks of kThreads threads of `per_thread` elements each.
inline dim3 BlocksFor(std::size_t numel, std::size_t per_thread) {
  return dim3(static_cast<unsigned>(CeilDiv(numel, per_thread * kThreads)));
}

}  // namespace gradwire::cuda

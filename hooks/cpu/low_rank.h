// The three passes of PowerSGD over a matrix M, for float and double, with run-time dispatch.
//
// M is row-major, rows x cols. P is row-major, rows x rank. Q comes and goes transposed: rank rows
// of `cols` elements, row k at q + k * cols. rank is 1 or more. Nothing is allocated. Pointers may
// be unaligned; regions do not overlap unless said.
#pragma once

#include <cstddef>

#include "hooks/device.h"

namespace gradwire::cpu {

// M += residual (null: nothing is added), in place, and P = M * Q. Reads M and residual once.
template <class T>
void AddAndMultiply(LowRankShape shape, T* matrix, const T* residual, const T* q, T* p);

// Q = M^T * P. Reads M once.
template <class T>
void TransposeMultiply(LowRankShape shape, const T* matrix, const T* p, T* q);

// With x = P * Q^T (sums in order of k, products rounded before they are added: the same bits on
// every target): residual = M - x (null: not wanted), M = x.
template <class T>
void ReconstructAndSubtract(LowRankShape shape, T* matrix, const T* p, const T* q, T* residual);

// into += from.
template <class T>
void Add(std::size_t numel, T* into, const T* from);

// The sum of squares, in fp64, since those of float gradients exceed float's range from 1.8e19 on.
// Targets add in different orders, so the last bits differ.
template <class T>
double SumOfSquares(std::size_t numel, const T* values);

}  // namespace gradwire::cpu

// M = P Q^T and the residual in one pass over M. Each product is rounded before it is added, in the
// order of k, so that all members get the same bits on every device.
#include "hooks/cuda/element.cuh"
#include "hooks/cuda/kernels.h"

namespace gradwire::cuda {
namespace {

constexpr unsigned kTileRows = 32;      // of a block, whose P lies in shared memory
constexpr std::size_t kMostRanks = 32;  // with Q in registers

// A thread keeps Q's values for its kCount columns and goes down the block's rows.
template <class T, unsigned kRank, unsigned kCount>
__global__ void __launch_bounds__(kThreads) ReconstructKernel(const ReconstructOperands<T> a) {
  __shared__ T weights[kTileRows * kRank];
  const std::size_t cols = a.shape.cols;
  const auto ranks = static_cast<unsigned>(a.shape.rank);
  const std::size_t first = std::size_t{blockIdx.y} * kTileRows;
  const std::size_t left = a.shape.rows - first;
  const auto rows = static_cast<unsigned>(left < kTileRows ? left : kTileRows);
  for (unsigned i = threadIdx.x; i < rows * ranks; i += kThreads) {
    weights[i] = a.p[first * ranks + i];
  }
  __syncthreads();
  const std::size_t col = (std::size_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (col >= cols) return;
  Pack<T, kCount> q[kRank];
#pragma unroll
  for (unsigned k = 0; k < kRank; ++k) {
    if (k < ranks) q[k] = LoadPack<T, kCount>(a.q + k * cols + col);
  }
#pragma unroll 2
  for (unsigned r = 0; r < rows; ++r) {
    const std::size_t at = (first + r) * cols + col;
    const T* weight = weights + r * ranks;
    Pack<T, kCount> x;
#pragma unroll
    for (unsigned e = 0; e < kCount; ++e) x.v[e] = Multiply(weight[0], q[0].v[e]);
#pragma unroll
    for (unsigned k = 1; k < kRank; ++k) {
      if (k >= ranks) break;
#pragma unroll
      for (unsigned e = 0; e < kCount; ++e) {
        x.v[e] = Add(x.v[e], Multiply(weight[k], q[k].v[e]));
      }
    }
    if (a.residual != nullptr) {
      Pack<T, kCount> rest = LoadPack<T, kCount>(a.matrix + at);
#pragma unroll
      for (unsigned e = 0; e < kCount; ++e) rest.v[e] = Add(rest.v[e], -x.v[e]);
      StorePack(a.residual + at, rest);
    }
    StorePack(a.matrix + at, x);
  }
}

// For higher ranks: one element per thread, Q from the caches.
template <class T>
__global__ void __launch_bounds__(kThreads) ReconstructAnyKernel(const ReconstructOperands<T> a) {
  const std::size_t cols = a.shape.cols;
  const std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.shape.rows * cols) return;
  const T* p = a.p + i / cols * a.shape.rank;
  const T* q = a.q + i % cols;
  T x = Multiply(p[0], q[0]);
  for (std::size_t k = 1; k < a.shape.rank; ++k) x = Add(x, Multiply(p[k], q[k * cols]));
  if (a.residual != nullptr) a.residual[i] = Add(a.matrix[i], -x);
  a.matrix[i] = x;
}

template <class T, unsigned kRank>
void Start(Stream& stream, const ReconstructOperands<T>& m) {
  // Q of rank 32 leaves room for fewer columns.
  constexpr unsigned kCount = (kRank == 32 ? 8 : 16) / static_cast<unsigned>(sizeof(T));
  const auto tiles = static_cast<unsigned>(CeilDiv(m.shape.rows, kTileRows));
  if (m.shape.cols * sizeof(T) % 16 == 0 && IsAligned(m.matrix) && IsAligned(m.q) &&
      IsAligned(m.residual)) {
    const dim3 blocks(BlocksFor(m.shape.cols, kCount).x, tiles);
    stream.Launch(blocks, ReconstructKernel<T, kRank, kCount>, m);
  } else {
    const dim3 blocks(BlocksFor(m.shape.cols, 1).x, tiles);
    stream.Launch(blocks, ReconstructKernel<T, kRank, 1>, m);
  }
}

}  // namespace

template <class T>
void ReconstructAndSubtract(Stream& stream, const ReconstructOperands<T>& m) {
  const std::size_t rank = m.shape.rank;
  // The grid's second dimension ends at 65,535.
  if (rank > kMostRanks || m.shape.rows > std::size_t{65535} * kTileRows) {
    stream.Launch(BlocksFor(m.shape.rows * m.shape.cols, 1), ReconstructAnyKernel<T>, m);
  } else if (rank <= 1) {
    Start<T, 1>(stream, m);
  } else if (rank <= 2) {
    Start<T, 2>(stream, m);
  } else if (rank <= 4) {
    Start<T, 4>(stream, m);
  } else if (rank <= 8) {
    Start<T, 8>(stream, m);
  } else if (rank <= 16) {
    Start<T, 16>(stream, m);
  } else {
    Start<T, 32>(stream, m);
  }
}

template void ReconstructAndSubtract(Stream&, const ReconstructOperands<float>&);
template void ReconstructAndSubtract(Stream&, const ReconstructOperands<double>&);

}  // namespace gradwire::cuda

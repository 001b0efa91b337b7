// PowerSGD's products P = M Q and Q = M^T P. They read M once and are bound by that; ranks are
// small, so all of a thread's sums stay in registers.
//
// Additions of T form chains of at most some hundred terms, and the sums of what a block has seen
// are added in fp64, in a fixed order: equal inputs give equal bits on one GPU. Which part of the
// sums a block takes depends on the GPU's size, so another GPU may give others.
#include <algorithm>

#include "hooks/cuda/element.cuh"
#include "hooks/cuda/kernels.h"

namespace gradwire::cuda {
namespace {

constexpr unsigned kLanes = 32;
constexpr unsigned kWarps = kThreads / kLanes;

// Blocks that fit a processor at once, for a kernel with this many bytes of sums per thread. It
// tells ptxas how many registers there are: by its own choice it spills some to save others.
constexpr unsigned BlocksThatFit(std::size_t sums) { return sums <= 128 ? 2 : 1; }

// ---- P = (M + R) Q: a warp takes kRows rows, its lanes neighbouring columns

// A lane adds at most this many terms times kCount in T.
constexpr std::size_t kMostCols = 4096;

template <class T>
struct ProductArguments {
  LowRankShape shape;
  T* matrix;
  const T* residual;
  const T* q;
  T* out;             // [split][row][rank]: sums of the split's columns
  std::size_t first;  // of the ranks that this launch computes
  unsigned ranks;
  std::size_t split_cols;
};

template <class T, unsigned kRank, unsigned kRows, unsigned kCount>
__global__ void __launch_bounds__(kThreads, BlocksThatFit(kRows* kRank * sizeof(T)))
    ProductKernel(const ProductArguments<T> a) {
  const std::size_t cols = a.shape.cols;
  const std::size_t row = (std::size_t{blockIdx.x} * kWarps + threadIdx.x / kLanes) * kRows;
  if (row >= a.shape.rows) return;  // the whole warp
  const unsigned lane = threadIdx.x % kLanes;
  const std::size_t begin = blockIdx.y * a.split_cols;
  const std::size_t end = cols - begin < a.split_cols ? cols : begin + a.split_cols;
  T sums[kRows][kRank] = {};
  for (std::size_t col = begin + lane * kCount; col < end; col += kLanes * kCount) {
    Pack<T, kCount> m[kRows];
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
      // Rows past the end repeat the last one; nobody reads their sums.
      const std::size_t at = (row + r < a.shape.rows ? row + r : row) * cols + col;
      m[r] = LoadPack<T, kCount>(a.matrix + at);
      if (a.residual == nullptr) continue;
      const Pack<T, kCount> residual = LoadPack<T, kCount>(a.residual + at);
#pragma unroll
      for (unsigned e = 0; e < kCount; ++e) m[r].v[e] = Add(m[r].v[e], residual.v[e]);
      if (row + r < a.shape.rows) StorePack(a.matrix + at, m[r]);
    }
#pragma unroll
    for (unsigned k = 0; k < kRank; ++k) {
      // The same for ranks past the end.
      const T* from = a.q + (a.first + (k < a.ranks ? k : 0)) * cols + col;
      const Pack<T, kCount> q = LoadPack<T, kCount>(from);
#pragma unroll
      for (unsigned r = 0; r < kRows; ++r) {
#pragma unroll
        for (unsigned e = 0; e < kCount; ++e) sums[r][k] = Fma(m[r].v[e], q.v[e], sums[r][k]);
      }
    }
  }
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) {
#pragma unroll
    for (unsigned k = 0; k < kRank; ++k) {
#pragma unroll
      for (unsigned other = kLanes / 2; other > 0; other /= 2) {
        sums[r][k] = Add(sums[r][k], __shfl_xor_sync(0xFFFFFFFFU, sums[r][k], other));
      }
      if (lane == k % kLanes && k < a.ranks && row + r < a.shape.rows) {
        const std::size_t at = blockIdx.y * a.shape.rows + row + r;
        a.out[at * a.shape.rank + a.first + k] = sums[r][k];
      }
    }
  }
}

// ---- Q = M^T P: a thread takes kCount neighbouring columns and a part of the rows

constexpr unsigned kTileRows = 32;  // whose P lies in shared memory
constexpr std::size_t kMostRows = 2048;

template <class T>
struct TransposedArguments {
  LowRankShape shape;
  const T* matrix;
  const T* p;
  T* out;  // [split][rank][col]: sums of the split's rows
  std::size_t first;
  unsigned ranks;
  std::size_t split_rows;
};

template <class T, unsigned kRank, unsigned kCount>
__global__ void __launch_bounds__(kThreads, BlocksThatFit(2 * kRank * kCount * sizeof(T)))
    TransposedKernel(const TransposedArguments<T> a) {
  __shared__ T weights[kTileRows * kRank];
  const std::size_t cols = a.shape.cols;
  const std::size_t col = (std::size_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  const std::size_t begin = blockIdx.y * a.split_rows;
  const std::size_t end = a.shape.rows - begin < a.split_rows ? a.shape.rows : begin + a.split_rows;
  Pack<T, kCount> totals[kRank] = {};
  for (std::size_t tile = begin; tile < end; tile += kTileRows) {
    const unsigned rows = static_cast<unsigned>(end - tile < kTileRows ? end - tile : kTileRows);
    __syncthreads();  // nobody reads the last tile's weights any more
    for (unsigned i = threadIdx.x; i < rows * kRank; i += kThreads) {
      const unsigned k = i % kRank;
      weights[i] = k < a.ranks ? a.p[(tile + i / kRank) * a.shape.rank + a.first + k] : T{0};
    }
    __syncthreads();
    if (col >= cols) continue;
    Pack<T, kCount> sums[kRank] = {};
#pragma unroll 4
    for (unsigned r = 0; r < rows; ++r) {
      const Pack<T, kCount> m = LoadPack<T, kCount>(a.matrix + (tile + r) * cols + col);
#pragma unroll
      for (unsigned k = 0; k < kRank; ++k) {
        const T weight = weights[r * kRank + k];
#pragma unroll
        for (unsigned e = 0; e < kCount; ++e) sums[k].v[e] = Fma(weight, m.v[e], sums[k].v[e]);
      }
    }
#pragma unroll
    for (unsigned k = 0; k < kRank; ++k) {
#pragma unroll
      for (unsigned e = 0; e < kCount; ++e) totals[k].v[e] = Add(totals[k].v[e], sums[k].v[e]);
    }
  }
  if (col >= cols) return;
#pragma unroll
  for (unsigned k = 0; k < kRank; ++k) {
    if (k >= a.ranks) break;
    const std::size_t row = std::size_t{blockIdx.y} * a.shape.rank + a.first + k;
    StorePack(a.out + row * cols + col, totals[k]);
  }
}

// ---- The sums of all splits

template <class T>
__global__ void __launch_bounds__(kThreads)
    AddSplitsKernel(std::size_t numel, unsigned splits, const T* sums, T* out) {
  const std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= numel) return;
  auto sum = static_cast<double>(sums[i]);
  for (unsigned split = 1; split < splits; ++split) {
    sum = Add(sum, static_cast<double>(sums[split * numel + i]));
  }
  out[i] = static_cast<T>(sum);
}

// How many parts a dimension is cut into, and how long they are: short enough for the chains of
// additions, and enough of them for all of the GPU, but no shorter than `unit`, of which they are
// multiples.
struct Splits {
  std::size_t length = 0;
  unsigned count = 1;
};
Splits Split(std::size_t length, std::size_t unit, std::size_t most, std::size_t blocks,
             std::size_t wanted_blocks) {
  const std::size_t wanted = std::max(CeilDiv(length, most), CeilDiv(wanted_blocks, blocks));
  const std::size_t part =
      CeilDiv(CeilDiv(length, std::min(wanted, CeilDiv(length, unit))), unit) * unit;
  return {part, static_cast<unsigned>(CeilDiv(length, part))};
}

// Calls f with the compile-time number of sums for `ranks`, at most 32.
template <class F>
void WithRank(unsigned ranks, F f) {
  if (ranks <= 1) return f(std::integral_constant<unsigned, 1>());
  if (ranks <= 2) return f(std::integral_constant<unsigned, 2>());
  if (ranks <= 4) return f(std::integral_constant<unsigned, 4>());
  if (ranks <= 8) return f(std::integral_constant<unsigned, 8>());
  if (ranks <= 16) return f(std::integral_constant<unsigned, 16>());
  return f(std::integral_constant<unsigned, 32>());
}

// Columns that are accessed together. Sums of rank 32 leave room for fewer.
template <class T, unsigned kRank>
constexpr unsigned kWideCount = (kRank == 32 ? 8 : 16) / static_cast<unsigned>(sizeof(T));

// Rows of a warp: each load of Q serves all of them.
template <class T, unsigned kRank>
constexpr unsigned kRowsOf = kRank * sizeof(T) <= 64 ? 4 : 2;

template <class T, unsigned kRank>
void StartProduct(Stream& stream, const ProductArguments<T>& a, unsigned splits, bool aligned) {
  constexpr unsigned kRows = kRowsOf<T, kRank>;
  const dim3 blocks(static_cast<unsigned>(CeilDiv(a.shape.rows, kWarps * kRows)), splits);
  if (aligned) {
    stream.Launch(blocks, ProductKernel<T, kRank, kRows, kWideCount<T, kRank>>, a);
  } else {
    stream.Launch(blocks, ProductKernel<T, kRank, kRows, 1>, a);
  }
}

template <class T, unsigned kRank>
void StartTransposed(Stream& stream, const TransposedArguments<T>& a, unsigned splits,
                     bool aligned) {
  constexpr unsigned kCount = kWideCount<T, kRank>;
  if (aligned) {
    const dim3 blocks(BlocksFor(a.shape.cols, kCount).x, splits);
    stream.Launch(blocks, TransposedKernel<T, kRank, kCount>, a);
  } else {
    const dim3 blocks(BlocksFor(a.shape.cols, 1).x, splits);
    stream.Launch(blocks, TransposedKernel<T, kRank, 1>, a);
  }
}

// Ranks of one launch. A higher rank reads M again for each such group.
constexpr std::size_t kMostRanks = 32;

template <class T>
T* SumsFor(Stream& stream, unsigned splits, std::size_t numel, T* out) {
  if (splits == 1) return out;
  return reinterpret_cast<T*>(stream.Scratch(splits * numel * sizeof(T)));
}

template <class T>
void AddSplits(Stream& stream, unsigned splits, std::size_t numel, const T* sums, T* out) {
  if (splits > 1) stream.Launch(BlocksFor(numel, 1), AddSplitsKernel<T>, numel, splits, sums, out);
}

}  // namespace

template <class T>
void AddAndMultiply(Stream& stream, const ProductOperands<T>& m) {
  const bool aligned = m.shape.cols * sizeof(T) % 16 == 0 && IsAligned(m.matrix) &&
                       IsAligned(m.residual) && IsAligned(m.q);
  const std::size_t rows_blocks = CeilDiv(m.shape.rows, kWarps * 4);
  const Splits splits =
      Split(m.shape.cols, kLanes * 4, kMostCols, rows_blocks, stream.wanted_blocks());
  const std::size_t numel = m.shape.rows * m.shape.rank;
  T* sums = SumsFor(stream, splits.count, numel, m.p);
  ProductArguments<T> a{.shape = m.shape,
                        .matrix = m.matrix,
                        .residual = m.residual,
                        .q = m.q,
                        .out = sums,
                        .first = 0,
                        .ranks = 0,
                        .split_cols = splits.length};
  for (; a.first < m.shape.rank; a.first += kMostRanks) {
    a.ranks = static_cast<unsigned>(std::min(kMostRanks, m.shape.rank - a.first));
    WithRank(a.ranks, [&](auto rank) {
      StartProduct<T, decltype(rank)::value>(stream, a, splits.count, aligned);
    });
    a.residual = nullptr;  // M has it now
  }
  AddSplits(stream, splits.count, numel, sums, m.p);
}

template <class T>
void TransposeMultiply(Stream& stream, const TransposedOperands<T>& m) {
  const bool aligned = m.shape.cols * sizeof(T) % 16 == 0 && IsAligned(m.matrix) && IsAligned(m.q);
  const std::size_t cols_blocks = CeilDiv(m.shape.cols, kThreads * (aligned ? 16 / sizeof(T) : 1));
  const Splits splits =
      Split(m.shape.rows, kTileRows, kMostRows, cols_blocks, stream.wanted_blocks());
  const std::size_t numel = m.shape.rank * m.shape.cols;
  T* sums = SumsFor(stream, splits.count, numel, m.q);
  TransposedArguments<T> a{.shape = m.shape,
                           .matrix = m.matrix,
                           .p = m.p,
                           .out = sums,
                           .first = 0,
                           .ranks = 0,
                           .split_rows = splits.length};
  for (; a.first < m.shape.rank; a.first += kMostRanks) {
    a.ranks = static_cast<unsigned>(std::min(kMostRanks, m.shape.rank - a.first));
    WithRank(a.ranks, [&](auto rank) {
      StartTransposed<T, decltype(rank)::value>(stream, a, splits.count, aligned);
    });
  }
  AddSplits(stream, splits.count, numel, sums, m.q);
}

template void AddAndMultiply(Stream&, const ProductOperands<float>&);
template void AddAndMultiply(Stream&, const ProductOperands<double>&);
template void TransposeMultiply(Stream&, const TransposedOperands<float>&);
template void TransposeMultiply(Stream&, const TransposedOperands<double>&);

}  // namespace gradwire::cuda

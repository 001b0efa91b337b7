#include "hooks/cpu/low_rank.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hooks/cpu/low_rank.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hooks/cpu/element-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef GRADWIRE_HOOKS_CPU_LOW_RANK_PASSES
#define GRADWIRE_HOOKS_CPU_LOW_RANK_PASSES
namespace gradwire::cpu {

template <class T>
struct Passes {
  void (*add_and_multiply)(LowRankShape, T* matrix, const T* residual, const T* q, T* p);
  void (*transpose_multiply)(LowRankShape, const T* matrix, const T* p, T* q);
  void (*reconstruct)(LowRankShape, T* matrix, const T* p, const T* q, T* residual);
};

}  // namespace gradwire::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace gradwire::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A loop named ...From handles whole vectors of its tag from `i` on and returns where it stopped.
// Each is called with full vectors first, and then with vectors of one lane for the remainder.

// Columns of a block of rows that stays in the first-level cache while the loop over k reads it
// repeatedly. A block is also short enough for sums in T; the sums of blocks are added in fp64.
constexpr std::size_t kBlockCols = 256;

// Starts fetching what the loop over a row's vectors of `d` reads a block later: the processor by
// itself looks no further than the end of a page, and rows that take turns by blocks break its
// streams. Vectors of one lane are for the rest of a row.
template <class D, class T>
HWY_INLINE void PrefetchNextBlock(D d, const T* at) {
  if constexpr (hn::MaxLanes(D()) > 1) {
    PrefetchAhead(reinterpret_cast<const std::byte*>(at), hn::Lanes(d) * sizeof(T),
                  kBlockCols * sizeof(T));
  }
}

// ---- AddAndMultiply
//
// P = (M + R) Q, for kDotRows rows at a time, so that each load of q serves several rows. The first
// pass (k = 0) also writes M + R back to `m`; later ones read the sum there. Two accumulators per
// row (a, b) hide the latency of the multiply-add.

constexpr std::size_t kDotRows = 4;
constexpr std::size_t kDotRanks = 8;

template <bool kAdd, class D, class T>
HWY_INLINE hn::Vec<D> LoadAdded(D d, T* m, const T* residual, std::size_t at) {
  auto v = hn::LoadU(d, m + at);
  if constexpr (kAdd) {
    PrefetchNextBlock(d, m + at);
    PrefetchNextBlock(d, residual + at);
    v = hn::Add(v, hn::LoadU(d, residual + at));
    hn::StoreU(v, d, m + at);
  }
  return v;
}

// sums[j] += row j of m times q over the columns [i, end).
template <bool kAdd, std::size_t kRows, class D, class T>
HWY_INLINE std::size_t DotFrom(D d, std::size_t i, std::size_t end, std::size_t cols, T* m,
                               const T* residual, const T* q, double* sums) {
  const std::size_t lanes = hn::Lanes(d);
  auto a0 = hn::Zero(d);
  auto b0 = a0, a1 = a0, b1 = a0, a2 = a0, b2 = a0, a3 = a0, b3 = a0;
  for (; i + 2 * lanes <= end; i += 2 * lanes) {
    const std::size_t n = i + lanes;
    const auto qa = hn::LoadU(d, q + i);
    const auto qb = hn::LoadU(d, q + n);
    a0 = hn::MulAdd(qa, LoadAdded<kAdd>(d, m, residual, i), a0);
    b0 = hn::MulAdd(qb, LoadAdded<kAdd>(d, m, residual, n), b0);
    if constexpr (kRows == 4) {
      a1 = hn::MulAdd(qa, LoadAdded<kAdd>(d, m, residual, cols + i), a1);
      b1 = hn::MulAdd(qb, LoadAdded<kAdd>(d, m, residual, cols + n), b1);
      a2 = hn::MulAdd(qa, LoadAdded<kAdd>(d, m, residual, 2 * cols + i), a2);
      b2 = hn::MulAdd(qb, LoadAdded<kAdd>(d, m, residual, 2 * cols + n), b2);
      a3 = hn::MulAdd(qa, LoadAdded<kAdd>(d, m, residual, 3 * cols + i), a3);
      b3 = hn::MulAdd(qb, LoadAdded<kAdd>(d, m, residual, 3 * cols + n), b3);
    }
  }
  for (; i + lanes <= end; i += lanes) {
    const auto qa = hn::LoadU(d, q + i);
    a0 = hn::MulAdd(qa, LoadAdded<kAdd>(d, m, residual, i), a0);
    if constexpr (kRows == 4) {
      a1 = hn::MulAdd(qa, LoadAdded<kAdd>(d, m, residual, cols + i), a1);
      a2 = hn::MulAdd(qa, LoadAdded<kAdd>(d, m, residual, 2 * cols + i), a2);
      a3 = hn::MulAdd(qa, LoadAdded<kAdd>(d, m, residual, 3 * cols + i), a3);
    }
  }
  sums[0] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(a0, b0))));
  if constexpr (kRows == 4) {
    sums[1] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(a1, b1))));
    sums[2] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(a2, b2))));
    sums[3] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(a3, b3))));
  }
  return i;
}

template <bool kAdd, std::size_t kRows, class T>
HWY_INLINE void DotBlock(std::size_t begin, std::size_t end, std::size_t cols, T* m,
                         const T* residual, const T* q, double* sums) {
  const std::size_t done =
      DotFrom<kAdd, kRows>(hn::ScalableTag<T>(), begin, end, cols, m, residual, q, sums);
  if (done < end) DotFrom<kAdd, kRows>(One<T>(), done, end, cols, m, residual, q, sums);
}

// Takes kDotRanks columns of Q at a time, because their fp64 sums are on the stack. A block of
// kBlockCols columns of M is read once from memory and `ranks` times from the first-level cache.
template <std::size_t kRows, class T>
HWY_INLINE void MultiplyRows(LowRankShape shape, T* m, const T* residual, const T* q, T* p) {
  const std::size_t cols = shape.cols;
  for (std::size_t first = 0; first < shape.rank; first += kDotRanks) {
    const std::size_t ranks = std::min(kDotRanks, shape.rank - first);
    double sums[kDotRanks * kRows] = {};
    for (std::size_t begin = 0; begin < cols; begin += kBlockCols) {
      const std::size_t end = std::min(begin + kBlockCols, cols);
      for (std::size_t k = 0; k < ranks; ++k) {
        const T* qk = q + (first + k) * cols;
        if (first + k == 0 && residual != nullptr) {
          DotBlock<true, kRows>(begin, end, cols, m, residual, qk, sums);
        } else {
          DotBlock<false, kRows>(begin, end, cols, m, residual, qk, sums + k * kRows);
        }
      }
    }
    for (std::size_t k = 0; k < ranks; ++k) {
      for (std::size_t j = 0; j < kRows; ++j) {
        p[j * shape.rank + first + k] = static_cast<T>(sums[k * kRows + j]);
      }
    }
  }
}

template <class T>
void AddAndMultiplyPass(LowRankShape shape, T* matrix, const T* residual, const T* q, T* p) {
  const auto from = [&](std::size_t row) {
    return residual == nullptr ? nullptr : residual + row * shape.cols;
  };
  std::size_t row = 0;
  for (; row + kDotRows <= shape.rows; row += kDotRows) {
    MultiplyRows<kDotRows>(shape, matrix + row * shape.cols, from(row), q, p + row * shape.rank);
  }
  for (; row < shape.rows; ++row) {
    MultiplyRows<1>(shape, matrix + row * shape.cols, from(row), q, p + row * shape.rank);
  }
}

// ---- TransposeMultiply
//
// Q = M^T P, row by row of M: sums += p[row] * m[row]. M is read once for `ranks` columns of P.
// Sums in T are cheap but lose digits, so they are added to fp64 totals every kSumRows rows.

constexpr std::size_t kAxpyRows = 8;
constexpr std::size_t kSumRows = 64;      // rows after which sums in T go to those in fp64
constexpr std::size_t kTileNumel = 4096;  // elements of Q: both arrays of sums are on the stack

// sums[i] += the kRows rows of m, each times its element of column p.
// Two chains of multiply-adds (s and t) hide their latency. One load and one store of `sums` serve
// kRows rows, since these would otherwise dominate.
template <std::size_t kRows, bool kFirst, class D, class T>
HWY_INLINE std::size_t AxpyFrom(D d, std::size_t i, std::size_t end, std::size_t cols, const T* m,
                                const T* p, std::size_t rank, T* sums) {
  const std::size_t lanes = hn::Lanes(d);
  const auto weight = [&](std::size_t j) { return p[j < kRows ? j * rank : 0]; };
  const T p0 = weight(0), p1 = weight(1), p2 = weight(2), p3 = weight(3);
  const T p4 = weight(4), p5 = weight(5), p6 = weight(6), p7 = weight(7);
  for (; i + lanes <= end; i += lanes) {
    const T* at = m + i;
    if constexpr (kFirst) {
      for (std::size_t j = 0; j < kRows; ++j) PrefetchNextBlock(d, at + j * cols);
    }
    auto s = hn::Mul(hn::Set(d, p0), hn::LoadU(d, at));
    if constexpr (kRows == 8) {
      auto t = hn::Mul(hn::Set(d, p1), hn::LoadU(d, at + cols));
      s = hn::MulAdd(hn::Set(d, p2), hn::LoadU(d, at + 2 * cols), s);
      t = hn::MulAdd(hn::Set(d, p3), hn::LoadU(d, at + 3 * cols), t);
      s = hn::MulAdd(hn::Set(d, p4), hn::LoadU(d, at + 4 * cols), s);
      t = hn::MulAdd(hn::Set(d, p5), hn::LoadU(d, at + 5 * cols), t);
      s = hn::MulAdd(hn::Set(d, p6), hn::LoadU(d, at + 6 * cols), s);
      t = hn::MulAdd(hn::Set(d, p7), hn::LoadU(d, at + 7 * cols), t);
      s = hn::Add(s, t);
    }
    hn::StoreU(hn::Add(hn::LoadU(d, sums + i), s), d, sums + i);
  }
  return i;
}

template <std::size_t kRows, bool kFirst, class T>
HWY_INLINE void AxpyBlock(std::size_t cols, std::size_t begin, std::size_t end, const T* m,
                          const T* p, std::size_t rank, T* sums) {
  const std::size_t done =
      AxpyFrom<kRows, kFirst>(hn::ScalableTag<T>(), begin, end, cols, m, p, rank, sums);
  AxpyFrom<kRows, kFirst>(One<T>(), done, end, cols, m, p, rank, sums);
}

// totals += sums; sums = 0.
template <class D, class T>
HWY_INLINE std::size_t FlushFrom(D d, std::size_t i, std::size_t end, T* sums, double* totals) {
  const std::size_t lanes = hn::Lanes(d);
  const hn::Rebind<T, D> narrow;
  for (; i + lanes <= end; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, totals + i), LoadWide(d, sums + i)), d, totals + i);
    hn::StoreU(hn::Zero(narrow), narrow, sums + i);
  }
  return i;
}

// Columns [first, first + width) of `ranks` rows of Q; q and p start at the first of these rows.
// The sums of a tile take 4096 elements in T and in fp64, at most 64 KiB of stack. Rows are added
// in the order of M, so the result does not depend on the number of tiles.
template <class T>
HWY_INLINE void TransposeTile(LowRankShape shape, std::size_t first, std::size_t width,
                              std::size_t ranks, const T* matrix, const T* p, T* q) {
  HWY_ALIGN T sums[kTileNumel];
  HWY_ALIGN double totals[kTileNumel];
  std::fill_n(sums, ranks * width, T{0});
  std::fill_n(totals, ranks * width, 0.0);
  for (std::size_t row = 0; row < shape.rows;) {
    const std::size_t flush = std::min(row + kSumRows, shape.rows);
    while (row < flush) {
      const T* m = matrix + row * shape.cols + first;
      const T* weights = p + row * shape.rank;
      // kSumRows is a multiple of kAxpyRows, so single rows remain only at the end of M.
      const bool whole = row + kAxpyRows <= flush;
      for (std::size_t begin = 0; begin < width; begin += kBlockCols) {
        const std::size_t end = std::min(begin + kBlockCols, width);
        for (std::size_t k = 0; k < ranks; ++k) {
          T* at = sums + k * width;
          if (!whole) {
            AxpyBlock<1, false>(shape.cols, begin, end, m, weights + k, shape.rank, at);
          } else if (k == 0) {
            AxpyBlock<kAxpyRows, true>(shape.cols, begin, end, m, weights, shape.rank, at);
          } else {
            AxpyBlock<kAxpyRows, false>(shape.cols, begin, end, m, weights + k, shape.rank, at);
          }
        }
      }
      row += whole ? kAxpyRows : 1;
    }
    const std::size_t done = FlushFrom(hn::ScalableTag<double>(), 0, ranks * width, sums, totals);
    FlushFrom(One<double>(), done, ranks * width, sums, totals);
  }
  for (std::size_t k = 0; k < ranks; ++k) {
    std::transform(totals + k * width, totals + (k + 1) * width, q + k * shape.cols + first,
                   [](double total) { return static_cast<T>(total); });
  }
}

// A wide Q with few ranks fits into one tile, so that M is read once; otherwise M is read tile by
// tile.
template <class T>
void TransposeMultiplyPass(LowRankShape shape, const T* matrix, const T* p, T* q) {
  const std::size_t ranks = std::min(shape.rank, kTileNumel / kBlockCols);
  const std::size_t widest = kTileNumel / ranks / kBlockCols * kBlockCols;
  for (std::size_t k = 0; k < shape.rank; k += ranks) {
    for (std::size_t first = 0; first < shape.cols; first += widest) {
      TransposeTile(shape, first, std::min(widest, shape.cols - first),
                    std::min(ranks, shape.rank - k), matrix, p + k, q + k * shape.cols);
    }
  }
}

// ---- Reconstruct
//
// M' = P Q^T and R = M - M' in one pass. Product by product, with a rounding after each (no fused
// multiply-add), so that the result is bit for bit the same on every instruction set: members must
// hold equal parameters.

// From this size on the residual is stored with non-temporal stores: it is not read before the next
// step and would only evict other data from the caches.
constexpr std::size_t kStreamBytes = std::size_t{1} << 20;

enum class Residual { kNone, kStored, kStreamed };

template <class T>
struct ReconstructRow {
  std::size_t cols;
  std::size_t rank;
  T* m;
  const T* p;
  const T* q;
  T* residual;
};

template <class D, class T>
HWY_INLINE hn::Vec<D> Product(D d, const ReconstructRow<T>& row, const T* q) {
  auto x = hn::Mul(hn::Set(d, row.p[0]), hn::LoadU(d, q));
  for (std::size_t k = 1; k < row.rank; ++k) {
    x = hn::Add(x, hn::Mul(hn::Set(d, row.p[k]), hn::LoadU(d, q + k * row.cols)));
  }
  return x;
}

template <Residual kResidual, class D, class T>
HWY_INLINE void StoreBoth(D d, const ReconstructRow<T>& row, std::size_t i, hn::Vec<D> x) {
  if constexpr (kResidual != Residual::kNone) {
    PrefetchNextBlock(d, row.m + i);
    const auto rest = hn::Sub(hn::LoadU(d, row.m + i), x);
    if constexpr (kResidual == Residual::kStreamed) {
      hn::Stream(rest, d, row.residual + i);
    } else {
      hn::StoreU(rest, d, row.residual + i);
    }
  }
  hn::StoreU(x, d, row.m + i);
}

template <Residual kResidual, class D, class T>
HWY_INLINE std::size_t ReconstructFrom(D d, std::size_t i, std::size_t end,
                                       const ReconstructRow<T>& row) {
  const std::size_t lanes = hn::Lanes(d);
  // Four independent vectors hide the latency of the additions and share the broadcast of p. Each
  // element sees the same operations as in Product.
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    const T* q = row.q + i;
    const auto first = hn::Set(d, row.p[0]);
    auto x0 = hn::Mul(first, hn::LoadU(d, q));
    auto x1 = hn::Mul(first, hn::LoadU(d, q + lanes));
    auto x2 = hn::Mul(first, hn::LoadU(d, q + 2 * lanes));
    auto x3 = hn::Mul(first, hn::LoadU(d, q + 3 * lanes));
    for (std::size_t k = 1; k < row.rank; ++k) {
      q += row.cols;
      const auto p = hn::Set(d, row.p[k]);
      x0 = hn::Add(x0, hn::Mul(p, hn::LoadU(d, q)));
      x1 = hn::Add(x1, hn::Mul(p, hn::LoadU(d, q + lanes)));
      x2 = hn::Add(x2, hn::Mul(p, hn::LoadU(d, q + 2 * lanes)));
      x3 = hn::Add(x3, hn::Mul(p, hn::LoadU(d, q + 3 * lanes)));
    }
    StoreBoth<kResidual>(d, row, i, x0);
    StoreBoth<kResidual>(d, row, i + lanes, x1);
    StoreBoth<kResidual>(d, row, i + 2 * lanes, x2);
    StoreBoth<kResidual>(d, row, i + 3 * lanes, x3);
  }
  for (; i + lanes <= end; i += lanes) {
    StoreBoth<kResidual>(d, row, i, Product(d, row, row.q + i));
  }
  return i;
}

// The number of elements before the first aligned vector of `at`: Stream needs aligned addresses.
template <class T>
std::size_t Misaligned(const T* at) {
  const std::size_t bytes = hn::Lanes(hn::ScalableTag<T>()) * sizeof(T);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(at) % bytes;
  return past == 0 ? 0 : (bytes - past) / sizeof(T);
}

// Stream needs aligned addresses, and rows may begin anywhere: single elements are stored normally
// up to the first aligned vector and after the last one.
template <Residual kResidual, class T>
void ReconstructRows(std::size_t rows, ReconstructRow<T> row) {
  for (std::size_t n = 0; n < rows; ++n) {
    std::size_t i = 0;
    if constexpr (kResidual == Residual::kStreamed) {
      const std::size_t head = std::min(Misaligned(row.residual), row.cols);
      i = ReconstructFrom<Residual::kStored>(One<T>(), 0, head, row);
    }
    i = ReconstructFrom<kResidual>(hn::ScalableTag<T>(), i, row.cols, row);
    constexpr auto kRest = kResidual == Residual::kNone ? kResidual : Residual::kStored;
    ReconstructFrom<kRest>(One<T>(), i, row.cols, row);
    row.m += row.cols;
    row.p += row.rank;
    if constexpr (kResidual != Residual::kNone) row.residual += row.cols;
  }
}

template <class T>
void ReconstructPass(LowRankShape shape, T* matrix, const T* p, const T* q, T* residual) {
  const ReconstructRow<T> first{shape.cols, shape.rank, matrix, p, q, residual};
  if (residual == nullptr) return ReconstructRows<Residual::kNone>(shape.rows, first);
  if (shape.rows * shape.cols * sizeof(T) < kStreamBytes) {
    return ReconstructRows<Residual::kStored>(shape.rows, first);
  }
  ReconstructRows<Residual::kStreamed>(shape.rows, first);
  // Non-temporal stores are weakly ordered: without the fence another thread could read old data.
  hwy::FlushStream();
}

template <class T>
Passes<T> PassesOf() {
  return {AddAndMultiplyPass<T>, TransposeMultiplyPass<T>, ReconstructPass<T>};
}
Passes<float> FloatPasses() { return PassesOf<float>(); }
Passes<double> DoublePasses() { return PassesOf<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::cpu {
namespace {

HWY_EXPORT(FloatPasses);
HWY_EXPORT(DoublePasses);

template <class T>
Passes<T> BestPasses() {
  if constexpr (std::is_same_v<T, float>) {
    return HWY_DYNAMIC_DISPATCH(FloatPasses)();
  } else {
    return HWY_DYNAMIC_DISPATCH(DoublePasses)();
  }
}

}  // namespace

template <class T>
void AddAndMultiply(LowRankShape shape, T* matrix, const T* residual, const T* q, T* p) {
  BestPasses<T>().add_and_multiply(shape, matrix, residual, q, p);
}

template <class T>
void TransposeMultiply(LowRankShape shape, const T* matrix, const T* p, T* q) {
  BestPasses<T>().transpose_multiply(shape, matrix, p, q);
}

template <class T>
void ReconstructAndSubtract(LowRankShape shape, T* matrix, const T* p, const T* q, T* residual) {
  BestPasses<T>().reconstruct(shape, matrix, p, q, residual);
}

template void AddAndMultiply(LowRankShape, float*, const float*, const float*, float*);
template void AddAndMultiply(LowRankShape, double*, const double*, const double*, double*);
template void TransposeMultiply(LowRankShape, const float*, const float*, float*);
template void TransposeMultiply(LowRankShape, const double*, const double*, double*);
template void ReconstructAndSubtract(LowRankShape, float*, const float*, const float*, float*);
template void ReconstructAndSubtract(LowRankShape, double*, const double*, const double*, double*);

}  // namespace gradwire::cpu
#endif  // HWY_ONCE

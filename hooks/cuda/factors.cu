// Factors of PowerSGD: orthonormal columns, one block per factor, and transposition.
//
// The arithmetic, its order included, is that of hooks/power_sgd/orthonormalize.cc, so that the
// bits are the same: fp64 without fused multiply-add, and sums over rows in kOrthonormalizeLanes
// lanes, one per thread.
#include <algorithm>
#include <type_traits>

#include "hooks/cuda/element.cuh"
#include "hooks/cuda/kernels.h"
#include "hooks/power_sgd/orthonormalize_order.h"

namespace gradwire::cuda {
namespace {

static_assert(kThreads == kOrthonormalizeLanes);

// Factors of one launch, whose descriptions travel with it.
constexpr std::size_t kBatch = 32;

template <class T>
struct Factor {
  MatrixShape shape;
  const T* from;
  T* to;
  double* precise;  // scratch, column-major
};
template <class T>
struct Batch {
  Factor<T> factors[kBatch];
};

// Multiplies by 2^-exponent, in two steps, since that power itself may be out of range.
class Scale {
 public:
  __device__ explicit Scale(int exponent)
      : first_(Power(-exponent / 2)), second_(Power(-exponent - -exponent / 2)) {}
  __device__ double operator()(double v) const { return Multiply(Multiply(v, first_), second_); }

 private:
  __device__ static double Power(int exponent) {
    return FromBits(static_cast<std::uint64_t>(exponent + 1023) << 52);
  }
  double first_;
  double second_;
};

// The columns of one factor. All functions are called by all threads of the block; a thread only
// touches the rows that leave its number as the remainder of a division by kThreads, so that no
// barrier is needed between passes.
class Columns {
 public:
  __device__ Columns(MatrixShape shape, double* matrix, double* lanes, unsigned long long* units)
      : shape_(shape), matrix_(matrix), lanes_(lanes), units_(units) {}

  __device__ double& at(std::size_t row, std::size_t col) {
    return matrix_[col * shape_.rows + row];
  }

  template <class F>
  __device__ void EachRow(F f) {
    for (std::size_t row = threadIdx.x; row < shape_.rows; row += kThreads) f(row);
  }

  __device__ void ScaleToOne(std::size_t col) {
    const double largest = Largest(col);
    if (largest == 0) return;
    const Scale scale(ilogb(largest));
    EachRow([&](std::size_t row) { at(row, col) = scale(at(row, col)); });
  }

  __device__ double Norm(std::size_t col) {
    const double largest = Largest(col);
    if (largest == 0) return 0;
    const int exponent = ilogb(largest);
    const Scale scale(exponent);
    const double sum = SumOfRows([&](std::size_t row) {
      const double scaled = scale(at(row, col));
      return Multiply(scaled, scaled);
    });
    return scalbn(__dsqrt_rn(sum), exponent);
  }

  __device__ void Project(std::size_t col) {
    for (std::size_t unit = 0; unit < col; ++unit) {
      const double dot =
          SumOfRows([&](std::size_t row) { return Multiply(at(row, unit), at(row, col)); });
      EachRow([&](std::size_t row) {
        at(row, col) = Add(at(row, col), -Multiply(dot, at(row, unit)));
      });
    }
  }

  // Not inlined: registers that live across the calls that divide would be spilled.
  __attribute__((noinline)) __device__ void DivideBy(std::size_t col, double divisor) {
    EachRow([&](std::size_t row) { at(row, col) = Divide(at(row, col), divisor); });
  }

  __device__ void Replace(std::size_t col) {
    const std::size_t unit = UnitOutside(col);
    EachRow([&](std::size_t row) { at(row, col) = row == unit ? 1.0 : 0.0; });
    Project(col);
    Project(col);
    DivideBy(col, Norm(col));
  }

 private:
  // Halves the lanes until one is left: lanes_[0] and units_[0] become better(…) of all threads'.
  template <class Better>
  __device__ void Reduce(double value, unsigned long long unit, std::size_t live, Better better) {
    __syncthreads();  // nobody reads the last result any more
    lanes_[threadIdx.x] = value;
    units_[threadIdx.x] = unit;
    for (std::size_t half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half && threadIdx.x + half < live) {
        better(threadIdx.x, threadIdx.x + static_cast<unsigned>(half));
      }
      live = live < half ? live : half;
    }
    __syncthreads();
  }

  template <class F>
  __device__ double SumOfRows(F value) {
    double sum = 0;
    if (threadIdx.x < shape_.rows) {
      sum = value(std::size_t{threadIdx.x});
      for (std::size_t row = threadIdx.x + kThreads; row < shape_.rows; row += kThreads) {
        sum = gradwire::cuda::Add(sum, value(row));
      }
    }
    const std::size_t live = shape_.rows < kThreads ? shape_.rows : kThreads;
    Reduce(sum, 0, live, [this](unsigned into, unsigned from) {
      lanes_[into] = gradwire::cuda::Add(lanes_[into], lanes_[from]);
    });
    return lanes_[0];
  }

  __device__ double Largest(std::size_t col) {
    double largest = 0;
    EachRow([&](std::size_t row) { largest = fmax(largest, fabs(at(row, col))); });
    Reduce(largest, 0, kThreads, [this](unsigned into, unsigned from) {
      lanes_[into] = fmax(lanes_[into], lanes_[from]);
    });
    return lanes_[0];
  }

  // The part of a unit vector outside the span of the columns before `col`, squared.
  __device__ double Outside(std::size_t unit, std::size_t col) {
    double outside = 1;
    for (std::size_t k = 0; k < col; ++k) {
      outside = gradwire::cuda::Add(outside, -Multiply(at(unit, k), at(unit, k)));
    }
    return outside;
  }

  // The first unit vector with at least half its norm outside, else the first of those with most.
  __device__ std::size_t UnitOutside(std::size_t col) {
    double most = 0;
    unsigned long long best = 0;
    for (std::size_t first = 0; first < shape_.rows; first += kThreads) {
      const std::size_t unit = first + threadIdx.x;
      const double outside = unit < shape_.rows ? Outside(unit, col) : 0;
      if (outside > most) {
        most = outside;
        best = unit;
      }
      if (!__syncthreads_or(outside >= 0.25)) continue;
      const unsigned long long none = shape_.rows;
      Reduce(0, outside >= 0.25 ? unit : none, kThreads, [this](unsigned into, unsigned from) {
        if (units_[from] < units_[into]) units_[into] = units_[from];
      });
      return units_[0];
    }
    Reduce(most, best, kThreads, [this](unsigned into, unsigned from) {
      const bool more = lanes_[from] > lanes_[into];
      const bool earlier = lanes_[from] == lanes_[into] && units_[from] < units_[into];
      if (!more && !earlier) return;
      lanes_[into] = lanes_[from];
      units_[into] = units_[from];
    });
    return units_[0];
  }

  const MatrixShape shape_;
  double* const matrix_;
  double* const lanes_;
  unsigned long long* const units_;
};

__device__ void MakeOrthonormal(Columns& columns, std::size_t cols, double epsilon) {
  const bool torchs_form = epsilon > 0 && cols <= 2;
  for (std::size_t col = 0; col < cols; ++col) {
    if (torchs_form) {
      columns.Project(col);
      columns.DivideBy(col, Add(columns.Norm(col), epsilon));
      continue;
    }
    columns.ScaleToOne(col);
    const double before = columns.Norm(col);
    columns.Project(col);
    columns.Project(col);
    const double norm = columns.Norm(col);
    if (before == 0 || norm < Multiply(kDeficient, before)) {
      columns.Replace(col);
    } else {
      columns.DivideBy(col, norm);
    }
  }
}

// There are fewer factors than processors: each block may have all registers.
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    OrthonormalizeKernel(const Batch<T> batch, double epsilon) {
  __shared__ double lanes[kThreads];
  __shared__ unsigned long long units[kThreads];
  const Factor<T>& factor = batch.factors[blockIdx.x];
  const std::size_t cols = factor.shape.cols;
  const std::size_t numel = factor.shape.rows * cols;
  bool finite = true;
  for (std::size_t i = threadIdx.x; i < numel; i += kThreads) {
    const auto value = static_cast<double>(factor.from[i]);
    finite = finite && fabs(value) <= 0x1.FFFFFFFFFFFFFp+1023;
    factor.precise[i % cols * factor.shape.rows + i / cols] = value;
  }
  if (__syncthreads_or(!finite)) {
    const T nan = static_cast<T>(FromBits(0x7FF8000000000000U));
    for (std::size_t i = threadIdx.x; i < numel; i += kThreads) factor.to[i] = nan;
    return;
  }
  Columns columns(factor.shape, factor.precise, lanes, units);
  MakeOrthonormal(columns, cols, epsilon);
  columns.EachRow([&](std::size_t row) {
    for (std::size_t col = 0; col < cols; ++col) {
      factor.to[row * cols + col] = static_cast<T>(columns.at(row, col));
    }
  });
}

// Neighbouring threads write neighbours, and read what lies in the same lines of a cache.
template <class T>
__global__ void __launch_bounds__(kThreads) TransposeKernel(const Batch<T> batch) {
  const Factor<T>& factor = batch.factors[blockIdx.y];
  const std::size_t rows = factor.shape.rows;
  const std::size_t cols = factor.shape.cols;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * cols;
       i += std::size_t{gridDim.x} * kThreads) {
    factor.to[i] = factor.from[i % rows * cols + i / rows];
  }
}

// Calls start(batch, count, largest) for each kBatch of the factors; `largest` in elements.
template <class T, class F>
void EachBatch(std::span<const FactorOperands<T>> factors, double* precise, F start) {
  while (!factors.empty()) {
    Batch<T> batch{};
    std::size_t largest = 0;
    const std::size_t count = std::min(factors.size(), kBatch);
    for (std::size_t i = 0; i < count; ++i) {
      const FactorOperands<T>& f = factors[i];
      batch.factors[i] = {f.shape, f.from, f.to, precise};
      largest = std::max(largest, f.shape.numel());
      if (precise != nullptr) precise += f.shape.numel();
    }
    start(batch, static_cast<unsigned>(count), largest);
    factors = factors.subspan(count);
  }
}

}  // namespace

template <class T>
void Orthonormalize(Stream& stream, double epsilon, std::span<const FactorOperands<T>> factors) {
  std::size_t numel = 0;
  for (const FactorOperands<T>& f : factors) numel += f.shape.numel();
  auto* precise = reinterpret_cast<double*>(stream.Scratch(numel * sizeof(double)));
  EachBatch(factors, precise, [&](const Batch<T>& batch, unsigned count, std::size_t /*largest*/) {
    stream.Launch(dim3(count), OrthonormalizeKernel<T>, batch, epsilon);
  });
}

template <class T>
void Transpose(Stream& stream, std::span<const FactorOperands<T>> factors) {
  constexpr std::size_t kPerThread = 4;
  EachBatch(factors, static_cast<double*>(nullptr),
            [&](const Batch<T>& batch, unsigned count, std::size_t largest) {
              const dim3 blocks(BlocksFor(largest, kPerThread).x, count);
              stream.Launch(blocks, TransposeKernel<T>, batch);
            });
}

template void Orthonormalize(Stream&, double, std::span<const FactorOperands<float>>);
template void Orthonormalize(Stream&, double, std::span<const FactorOperands<double>>);
template void Transpose(Stream&, std::span<const FactorOperands<float>>);
template void Transpose(Stream&, std::span<const FactorOperands<double>>);

}  // namespace gradwire::cuda

// The passes of PowerSGD that treat each element by itself, and the sum of squares.
#include <algorithm>
#include <type_traits>

#include "hooks/cuda/element.cuh"
#include "hooks/cuda/kernels.h"

namespace gradwire::cuda {
namespace {

constexpr unsigned kPerThread = 8;

// f(i) for each i < numel; a block's threads take neighbours.
template <class F>
__global__ void __launch_bounds__(kThreads) EachKernel(std::size_t numel, F f) {
  const std::size_t first = std::size_t{blockIdx.x} * kThreads * kPerThread + threadIdx.x;
#pragma unroll
  for (unsigned k = 0; k < kPerThread; ++k) {
    const std::size_t i = first + k * kThreads;
    if (i < numel) f(i);
  }
}

template <class F>
void Each(Stream& stream, std::size_t numel, F f) {
  stream.Launch(BlocksFor(numel, kPerThread), EachKernel<F>, numel, f);
}

template <class T>
struct AddTo {
  T* into;
  const T* from;
  __device__ void operator()(std::size_t i) const { into[i] = Add(into[i], from[i]); }
};

template <class T>
struct ScaleBy {
  T* values;
  double factor;
  __device__ void operator()(std::size_t i) const {
    values[i] = static_cast<T>(Multiply(static_cast<double>(values[i]), factor));
  }
};

template <class T>
constexpr DType kTypeOf = std::is_same_v<T, double> ? DType::kFloat64 : DType::kFloat32;

// What the wire keeps of a value.
template <class T, DType kWire>
__device__ T OnWire(T v) {
  return Cast<kWire, kTypeOf<T>>(Cast<kTypeOf<T>, kWire>(v));
}

template <class T, DType kWire>
struct RoundToWire {
  T* values;
  __device__ void operator()(std::size_t i) const { values[i] = OnWire<T, kWire>(values[i]); }
};

template <class T, DType kWire>
struct TakeResult {
  const Stored<kWire>* in;
  T* values;
  ResidualOf of;
  T* residual;
  __device__ void operator()(std::size_t i) const {
    const T result = Cast<kWire, kTypeOf<T>>(in[i]);
    const T value = values[i];
    if (of == ResidualOf::kResult) residual[i] = Add(value, -result);
    if (of == ResidualOf::kWire) residual[i] = Add(value, -OnWire<T, kWire>(value));
    values[i] = result;
  }
};

// ---- Sum of squares: each block's in a fixed order, then theirs

constexpr unsigned kSquareBlocks = 512;

// The sum over the block's threads, for thread 0.
__device__ double SumOfThreads(double value) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = value;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      sums[threadIdx.x] = Add(sums[threadIdx.x], sums[threadIdx.x + half]);
    }
  }
  return sums[0];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    SquaresKernel(std::size_t numel, const T* values, double* sums) {
  double sum = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < numel;
       i += std::size_t{gridDim.x} * kThreads) {
    const auto value = static_cast<double>(values[i]);
    sum = Fma(value, value, sum);
  }
  sum = SumOfThreads(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    AddSumsKernel(unsigned count, const double* sums, double* sum) {
  double mine = 0;
  for (unsigned i = threadIdx.x; i < count; i += kThreads) mine = Add(mine, sums[i]);
  mine = SumOfThreads(mine);
  if (threadIdx.x == 0) *sum = Add(*sum, mine);
}

}  // namespace

template <class T>
void Add(Stream& stream, std::size_t numel, T* into, const T* from) {
  Each(stream, numel, AddTo<T>{into, from});
}

template <class T>
void Scale(Stream& stream, std::size_t numel, T* values, double factor) {
  Each(stream, numel, ScaleBy<T>{values, factor});
}

template <class T>
void AddSquares(Stream& stream, std::size_t numel, const T* values, double* sum) {
  if (numel == 0) return;
  const auto blocks =
      static_cast<unsigned>(std::min<std::size_t>(BlocksFor(numel, kPerThread).x, kSquareBlocks));
  auto* sums = reinterpret_cast<double*>(stream.Scratch(kSquareBlocks * sizeof(double)));
  stream.Launch(dim3(blocks), SquaresKernel<T>, numel, values, sums);
  stream.Launch(dim3(1), AddSumsKernel, blocks, sums, sum);
}

template <class T>
void RoundTo(Stream& stream, DType wire, std::size_t numel, T* values) {
  WithDType(wire, [&](auto type) {
    constexpr DType kWire = decltype(type)::value;
    if constexpr (kWire != kTypeOf<T>) Each(stream, numel, RoundToWire<T, kWire>{values});
  });
}

template <class T>
void TakeResults(Stream& stream, DType wire, const void* in, std::size_t numel, T* values,
                 ResidualOf of, T* residual) {
  WithDType(wire, [&](auto type) {
    constexpr DType kWire = decltype(type)::value;
    Each(stream, numel,
         TakeResult<T, kWire>{static_cast<const Stored<kWire>*>(in), values, of, residual});
  });
}

#define GRADWIRE_INSTANTIATE(T)                                      \
  template void Add(Stream&, std::size_t, T*, const T*);             \
  template void Scale(Stream&, std::size_t, T*, double);             \
  template void AddSquares(Stream&, std::size_t, const T*, double*); \
  template void RoundTo(Stream&, DType, std::size_t, T*);            \
  template void TakeResults(Stream&, DType, const void*, std::size_t, T*, ResidualOf, T*);
GRADWIRE_INSTANTIATE(float)
GRADWIRE_INSTANTIATE(double)
#undef GRADWIRE_INSTANTIATE

}  // namespace gradwire::cuda

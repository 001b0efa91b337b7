// Casts and quotients: one pass, bound by memory.
#include "hooks/cuda/element.cuh"
#include "hooks/cuda/kernels.h"

namespace gradwire::cuda {
namespace {

template <DType kFrom, DType kTo>
struct CastOnly {
  __device__ Stored<kTo> operator()(Stored<kFrom> v) const { return Cast<kFrom, kTo>(v); }
};

// First the cast is rounded, then the quotient: in fp64 for float64, in fp32 for the others.
template <DType kFrom, DType kTo>
struct CastAndDivide {
  using T = std::conditional_t<kTo == DType::kFloat64, double, float>;
  T divisor;
  __device__ Stored<kTo> operator()(Stored<kFrom> v) const {
    return Round<kTo>(QuotientOf(As<T, kTo>(Cast<kFrom, kTo>(v)), divisor));
  }
};

// Elements of a thread: 16 bytes of the narrower side, so that both sides move 16 bytes at a time.
// With doubles 16 of theirs: they are rare, and quotients of more of them do not fit in registers
// beside the call that divides.
template <class From, class To>
constexpr unsigned kPackOf = sizeof(From) == 8 || sizeof(To) == 8
                                 ? 2
                                 : 16 / static_cast<unsigned>(sizeof(From) < sizeof(To)
                                                                  ? sizeof(From)
                                                                  : sizeof(To));

template <class From, class To, class F>
__global__ void __launch_bounds__(kThreads)
    MapPacks(const From* src, To* dst, std::size_t numel, F f) {
  constexpr unsigned kCount = kPackOf<From, To>;
  std::size_t i = (std::size_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (i + kCount <= numel) {
    const Pack<From, kCount> in = LoadPack<From, kCount>(src + i);
    Pack<To, kCount> out;
#pragma unroll
    for (unsigned k = 0; k < kCount; ++k) out.v[k] = f(in.v[k]);
    StorePack(dst + i, out);
    return;
  }
  for (; i < numel; ++i) dst[i] = f(src[i]);
}

// For addresses that are not aligned to 16 bytes: single elements, neighbours by neighbouring
// threads.
constexpr unsigned kSingles = 8;
template <class From, class To, class F>
__global__ void __launch_bounds__(kThreads)
    MapSingles(const From* src, To* dst, std::size_t numel, F f) {
  const std::size_t first = std::size_t{blockIdx.x} * kThreads * kSingles + threadIdx.x;
#pragma unroll
  for (unsigned k = 0; k < kSingles; ++k) {
    const std::size_t i = first + k * kThreads;
    if (i < numel) dst[i] = f(src[i]);
  }
}

template <class From, class To, class F>
void Map(Stream& stream, const void* src, void* dst, std::size_t numel, F f) {
  const auto* from = static_cast<const From*>(src);
  auto* to = static_cast<To*>(dst);
  if (IsAligned(src) && IsAligned(dst)) {
    stream.Launch(BlocksFor(numel, kPackOf<From, To>), MapPacks<From, To, F>, from, to, numel, f);
  } else {
    stream.Launch(BlocksFor(numel, kSingles), MapSingles<From, To, F>, from, to, numel, f);
  }
}

template <class F>
void WithDTypes(DType from, DType to, F f) {
  WithDType(from, [&](auto a) { WithDType(to, [&](auto b) { f(a, b); }); });
}

}  // namespace

void Convert(Stream& stream, DType from, const void* src, DType to, void* dst, std::size_t numel) {
  WithDTypes(from, to, [&](auto a, auto b) {
    constexpr DType kFrom = decltype(a)::value;
    constexpr DType kTo = decltype(b)::value;
    if constexpr (kFrom == kTo) {
      stream.Copy(dst, src, numel * sizeof(Stored<kTo>));
    } else {
      Map<Stored<kFrom>, Stored<kTo>>(stream, src, dst, numel, CastOnly<kFrom, kTo>());
    }
  });
}

void ConvertAndDivide(Stream& stream, DType from, const void* src, DType to, void* dst,
                      std::size_t numel, double divisor) {
  if (divisor == 1 && src == dst) return;
  if (divisor == 1) return Convert(stream, from, src, to, dst, numel);
  WithDTypes(from, to, [&](auto a, auto b) {
    constexpr DType kFrom = decltype(a)::value;
    constexpr DType kTo = decltype(b)::value;
    using F = CastAndDivide<kFrom, kTo>;
    Map<Stored<kFrom>, Stored<kTo>>(stream, src, dst, numel,
                                    F{static_cast<typename F::T>(divisor)});
  });
}

}  // namespace gradwire::cuda

// Sums of N sources in rank order: fp64 for float32 and float64, fp32 for 16 bits, rounded once.
#include <algorithm>
#include <type_traits>

#include "hooks/cuda/element.cuh"
#include "hooks/cuda/kernels.h"

namespace gradwire::cuda {
namespace {

// Addresses that travel with the launch. Further ones come from memory.
constexpr std::size_t kDirect = 64;
struct Sources {
  const void* direct[kDirect];
  const void* const* further;
  unsigned count;
};

struct SumArguments {
  Sources sources;
  double divisor;         // of the sum
  double source_divisor;  // of each source, before it is added
  void* dst;
  std::size_t numel;
  std::uint32_t* not_finite;
};

template <class T>
__device__ const T* SourceAt(const Sources& sources, unsigned k) {
  return static_cast<const T*>(k < kDirect ? sources.direct[k] : sources.further[k - kDirect]);
}

// One NaN for all: which operand's NaN survives an addition is up to the processor.
template <DType kType>
__device__ Stored<kType> RoundSum(float sum) {
  constexpr auto kNan = static_cast<std::uint16_t>(kType == DType::kFloat16 ? 0x7E00 : 0x7FC0);
  return sum == sum ? Round<kType>(sum) : kNan;
}
template <DType kType>
__device__ Stored<kType> RoundSum(double sum) {
  if (sum == sum) return Round<kType>(sum);
  if constexpr (kType == DType::kFloat64) {
    return FromBits(0x7FF8000000000000U);
  } else {
    return __uint_as_float(0x7FC00000U);
  }
}

template <DType kType>
__device__ bool IsFinite(Stored<kType> v) {
  if constexpr (kType == DType::kFloat32) {
    return (__float_as_uint(v) & 0x7F800000U) != 0x7F800000U;
  } else if constexpr (kType == DType::kFloat64) {
    return (Bits(v) & 0x7FF0000000000000U) != 0x7FF0000000000000U;
  } else {
    constexpr unsigned kExponent = kType == DType::kFloat16 ? 0x7C00U : 0x7F80U;
    return (v & kExponent) != kExponent;
  }
}

enum class Form { kSum, kMean, kSumOfQuotients };

// Elements [i, i + kCount) of each source, added from left to right.
template <DType kType, Form kForm, unsigned kCount>
__device__ bool SumPack(const SumArguments& a, std::size_t i) {
  constexpr bool kWide = kType == DType::kFloat32 || kType == DType::kFloat64;
  using T = std::conditional_t<kWide, double, float>;
  using Element = Stored<kType>;
  T sum[kCount];
  const auto load = [&](unsigned k) {
    Pack<Element, kCount> pack = LoadPack<Element, kCount>(SourceAt<Element>(a.sources, k) + i);
    if constexpr (kForm == Form::kSumOfQuotients) {
#pragma unroll
      for (unsigned e = 0; e < kCount; ++e) {
        pack.v[e] = QuotientOf(pack.v[e], static_cast<Element>(a.source_divisor));
      }
    }
    return pack;
  };
  const Pack<Element, kCount> first = load(0);
#pragma unroll
  for (unsigned e = 0; e < kCount; ++e) sum[e] = As<T, kType>(first.v[e]);
#pragma unroll 4
  for (unsigned k = 1; k < a.sources.count; ++k) {
    const Pack<Element, kCount> next = load(k);
#pragma unroll
    for (unsigned e = 0; e < kCount; ++e) sum[e] = Add(sum[e], As<T, kType>(next.v[e]));
  }
  Pack<Element, kCount> out;
  bool finite = true;
#pragma unroll
  for (unsigned e = 0; e < kCount; ++e) {
    if constexpr (kForm == Form::kMean) sum[e] = Divide(sum[e], static_cast<T>(a.divisor));
    out.v[e] = RoundSum<kType>(sum[e]);
    finite = finite && IsFinite<kType>(out.v[e]);
  }
  StorePack(static_cast<Element*>(a.dst) + i, out);
  return finite;
}

// With as many blocks ptxas may use 40 registers, and needs no more. By its own choice it takes 32
// and spills.
constexpr unsigned kBlocksThatFit = 6;

template <DType kType, Form kForm, unsigned kCount>
__global__ void __launch_bounds__(kThreads, kBlocksThatFit) SumKernel(const SumArguments a) {
  std::size_t i = (std::size_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  bool finite = true;
  if (i + kCount <= a.numel) {
    finite = SumPack<kType, kForm, kCount>(a, i);
  } else {
    for (; i < a.numel; ++i) finite = SumPack<kType, kForm, 1>(a, i) && finite;
  }
  if (!finite) atomicOr(a.not_finite, 1U);
}

// Means are taken of small arrays only (PowerSGD's Q), and a call that divides beside 16 bytes of
// sums would spill registers.
template <DType kType, Form kForm>
void Start(Stream& stream, const SumArguments& a, bool aligned) {
  constexpr unsigned kCount =
      kForm == Form::kMean ? 1 : 16 / static_cast<unsigned>(sizeof(Stored<kType>));
  if (aligned) {
    stream.Launch(BlocksFor(a.numel, kCount), SumKernel<kType, kForm, kCount>, a);
  } else {
    stream.Launch(BlocksFor(a.numel, 1), SumKernel<kType, kForm, 1>, a);
  }
}

// The table of the addresses past kDirect lies in scratch memory, which is not used again before
// the kernel that reads it.
bool Describe(Stream& stream, std::span<const void* const> srcs, SumArguments& a) {
  a.sources.count = static_cast<unsigned>(srcs.size());
  std::copy_n(srcs.begin(), std::min(srcs.size(), kDirect), a.sources.direct);
  bool aligned = IsAligned(a.dst);
  for (const void* src : srcs) aligned = aligned && IsAligned(src);
  if (srcs.size() > kDirect) {
    const std::span<const void* const> further = srcs.subspan(kDirect);
    std::byte* table = stream.Scratch(further.size_bytes());
    stream.Upload(table, further.data(), further.size_bytes());
    a.sources.further = reinterpret_cast<const void* const*>(table);
  }
  return aligned;
}

}  // namespace

void Sum(Stream& stream, DType dtype, std::span<const void* const> srcs, double divisor, void* dst,
         std::size_t numel, std::uint32_t* not_finite) {
  SumArguments a{.sources = {},
                 .divisor = divisor,
                 .source_divisor = 1,
                 .dst = dst,
                 .numel = numel,
                 .not_finite = not_finite};
  const bool aligned = Describe(stream, srcs, a);
  WithDType(dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::value;
    if (divisor == 1) return Start<kType, Form::kSum>(stream, a, aligned);
    Start<kType, Form::kMean>(stream, a, aligned);
  });
}

void SumQuotients(Stream& stream, std::span<const void* const> srcs, double divisor, void* dst,
                  std::size_t numel, std::uint32_t* not_finite) {
  SumArguments a{.sources = {},
                 .divisor = 1,
                 .source_divisor = divisor,
                 .dst = dst,
                 .numel = numel,
                 .not_finite = not_finite};
  const bool aligned = Describe(stream, srcs, a);
  Start<DType::kFloat32, Form::kSumOfQuotients>(stream, a, aligned);
}

}  // namespace gradwire::cuda

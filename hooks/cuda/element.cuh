// One element of each dtype on a GPU: what it is in memory, and the roundings between the dtypes,
// with the bits of hooks/cpu/element-inl.h.
//
// The GPU's own conversions make every NaN the same one, so NaNs are converted here by their bits.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "gradwire/hooks/dtype.h"

namespace gradwire::cuda {

template <DType kType>
struct StorageOf;
template <>
struct StorageOf<DType::kFloat32> {
  using Type = float;
};
template <>
struct StorageOf<DType::kFloat64> {
  using Type = double;
};
template <>
struct StorageOf<DType::kFloat16> {
  using Type = std::uint16_t;
};
template <>
struct StorageOf<DType::kBFloat16> {
  using Type = std::uint16_t;
};
template <DType kType>
using Stored = typename StorageOf<kType>::Type;

// ---- Arithmetic that no compiler may contract to a fused multiply-add

__device__ inline float Add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double Add(double a, double b) { return __dadd_rn(a, b); }
__device__ inline float Multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double Multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ inline float Divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline double Divide(double a, double b) { return __ddiv_rn(a, b); }
// Where it may.
__device__ inline float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline double Fma(double a, double b, double c) { return __fma_rn(a, b, c); }

// ---- NaN

__device__ inline std::uint64_t Bits(double v) {
  return static_cast<std::uint64_t>(__double_as_longlong(v));
}
__device__ inline double FromBits(std::uint64_t bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}

__device__ inline float Quiet(float nan) {
  return __uint_as_float(__float_as_uint(nan) | 0x00400000U);
}
__device__ inline double Quiet(double nan) { return FromBits(Bits(nan) | 0x0008000000000000U); }

// The quotient; a NaN stays what it is, made quiet.
template <class T>
__device__ T QuotientOf(T v, T divisor) {
  return v != v ? Quiet(v) : Divide(v, divisor);
}

// ---- To wider formats: exact

__device__ inline float WidenFloat16(std::uint16_t v) {
  const std::uint32_t magnitude = v & 0x7FFFU;
  if (magnitude <= 0x7C00U) return __half2float(__ushort_as_half(v));
  return __uint_as_float((v & 0x8000U) << 16 | 0x7FC00000U | magnitude << 13);
}

__device__ inline float WidenBFloat16(std::uint16_t v) {
  return __uint_as_float(static_cast<std::uint32_t>(v) << 16);
}

__device__ inline double Widen(float v) {
  if (v == v) return static_cast<double>(v);
  const std::uint64_t bits = __float_as_uint(v);
  return FromBits((bits & 0x80000000U) << 32 | 0x7FF8000000000000U | (bits & 0x007FFFFFU) << 29);
}

// ---- To narrower formats: to nearest, ties to even, once

__device__ inline std::uint16_t RoundToFloat16(float v) {
  if (v == v) return __half_as_ushort(__float2half_rn(v));
  const std::uint32_t bits = __float_as_uint(v);
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000U) | 0x7E00U | (bits >> 13 & 0x03FFU));
}

__device__ inline std::uint16_t RoundToBFloat16(float v) {
  const std::uint32_t bits = __float_as_uint(v);
  const std::uint32_t rounded = bits + 0x7FFFU + (bits >> 16 & 1U);
  return static_cast<std::uint16_t>((v == v ? rounded : bits | 0x00400000U) >> 16);
}

__device__ inline float RoundToFloat32(double v) {
  if (v == v) return __double2float_rn(v);
  const std::uint64_t bits = Bits(v);
  return __uint_as_float(static_cast<std::uint32_t>((bits >> 32 & 0x80000000U) | 0x7FC00000U |
                                                    (bits >> 29 & 0x007FFFFFU)));
}

// A binary32 that a rounding to 16 bits treats as it would treat `v`: 24 significant bits with the
// lost ones or-ed into the last; what may become a subnormal bfloat16 is rounded to its multiples
// (element-inl.h has the reasons).
__device__ inline float ToStickyFloat32(double v) {
  constexpr std::uint64_t kLost = 0x1FFFFFFFU;
  const std::uint64_t bits = Bits(v);
  const double magnitude = FromBits(bits & 0x7FFFFFFFFFFFFFFFU);
  if (magnitude < 0x1p-126) {
    constexpr double kMagic = 0x1p-81;  // its unit in the last place is 2^-133
    const double tiny = Add(Add(magnitude, kMagic), -kMagic);
    return RoundToFloat32(FromBits(Bits(tiny) | (bits & 0x8000000000000000U)));
  }
  const std::uint64_t sticky = ((bits & kLost) + kLost) & 0x20000000U;
  return RoundToFloat32(FromBits((bits | sticky) & ~kLost));
}

// ---- Any dtype

// As float or double, exactly.
template <class T, DType kType>
__device__ T As(Stored<kType> v) {
  if constexpr (kType == DType::kFloat16) {
    return static_cast<T>(As<T, DType::kFloat32>(WidenFloat16(v)));
  } else if constexpr (kType == DType::kBFloat16) {
    return static_cast<T>(As<T, DType::kFloat32>(WidenBFloat16(v)));
  } else if constexpr (sizeof(T) > sizeof(Stored<kType>)) {
    return Widen(v);
  } else {
    return v;
  }
}

// Rounded once.
template <DType kTo>
__device__ Stored<kTo> Round(float v) {
  if constexpr (kTo == DType::kFloat16) {
    return RoundToFloat16(v);
  } else if constexpr (kTo == DType::kBFloat16) {
    return RoundToBFloat16(v);
  } else if constexpr (kTo == DType::kFloat64) {
    return Widen(v);
  } else {
    return v;
  }
}
template <DType kTo>
__device__ Stored<kTo> Round(double v) {
  if constexpr (kTo == DType::kFloat64) {
    return v;
  } else if constexpr (kTo == DType::kFloat32) {
    return RoundToFloat32(v);
  } else {
    return Round<kTo>(ToStickyFloat32(v));
  }
}

template <DType kFrom, DType kTo>
__device__ Stored<kTo> Cast(Stored<kFrom> v) {
  constexpr bool kWide = kFrom == DType::kFloat64;
  if constexpr (kFrom == kTo) {
    return v;
  } else if constexpr (kWide) {
    return Round<kTo>(v);
  } else {
    return Round<kTo>(As<float, kFrom>(v));
  }
}

// ---- Several elements at once

// `kCount` elements in one access of up to 16 bytes, which `at` is aligned to.
template <class T, unsigned kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T v[kCount];
};

template <class T, unsigned kCount>
__device__ Pack<T, kCount> LoadPack(const T* at) {
  return *reinterpret_cast<const Pack<T, kCount>*>(at);
}
template <class T, unsigned kCount>
__device__ void StorePack(T* at, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(at) = pack;
}

inline bool IsAligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

// ---- From a dtype at run time to one at compile time

template <DType kType>
struct DTypeConstant {
  static constexpr DType value = kType;
};

template <class F>
void WithDType(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(DTypeConstant<DType::kFloat32>());
    case DType::kFloat64:
      return f(DTypeConstant<DType::kFloat64>());
    case DType::kFloat16:
      return f(DTypeConstant<DType::kFloat16>());
    case DType::kBFloat16:
      return f(DTypeConstant<DType::kBFloat16>());
  }
}

}  // namespace gradwire::cuda

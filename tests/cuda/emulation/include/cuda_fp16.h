// binary16 as the toolkit has it: conversions to nearest, ties to even; every NaN becomes 0x7FFF.
#pragma once

#include <bit>
#include <cstdint>

struct __half {
  std::uint16_t bits;
};

inline __half __ushort_as_half(std::uint16_t bits) { return {bits}; }
inline std::uint16_t __half_as_ushort(__half v) { return v.bits; }

inline float __half2float(__half v) { return static_cast<float>(std::bit_cast<_Float16>(v.bits)); }
inline __half __float2half_rn(float v) {
  if (v != v) return {0x7FFF};
  return {std::bit_cast<std::uint16_t>(static_cast<_Float16>(v))};
}

// The four formats by their definition: a value is a sign, an integer and a power of two; rounding
// is done on a long double that holds every value of every format exactly. Shares nothing with
// hooks/.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gradwire/hooks/dtype.h"

namespace gradwire::reference {

static_assert(std::numeric_limits<long double>::digits >= 64);

struct Format {
  int mantissa_bits;  // stored
  int exponent_bits;
  int min_exponent;  // of the unit in the last place of subnormals

  std::uint64_t fraction_mask() const { return (std::uint64_t{1} << mantissa_bits) - 1; }
  std::uint64_t exponent_mask() const {
    return ((std::uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  }
  std::uint64_t sign_mask() const { return std::uint64_t{1} << (mantissa_bits + exponent_bits); }
  std::uint64_t quiet_bit() const { return std::uint64_t{1} << (mantissa_bits - 1); }
};

inline Format FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {23, 8, -149};
    case DType::kFloat64:
      return {52, 11, -1074};
    case DType::kFloat16:
      return {10, 5, -24};
    case DType::kBFloat16:
      return {7, 8, -133};
  }
  return {};
}

inline bool IsNan(DType dtype, std::uint64_t bits) {
  const Format f = FormatOf(dtype);
  return (bits & (f.exponent_mask() | f.fraction_mask())) > f.exponent_mask();
}

inline bool IsFinite(DType dtype, std::uint64_t bits) {
  const Format f = FormatOf(dtype);
  return (bits & f.exponent_mask()) != f.exponent_mask();
}

inline std::uint64_t CanonicalNan(DType dtype) {
  const Format f = FormatOf(dtype);
  return f.exponent_mask() | f.quiet_bit();
}

// The value of a pattern; any NaN for NaNs.
inline long double Decode(DType dtype, std::uint64_t bits) {
  const Format f = FormatOf(dtype);
  const std::uint64_t fraction = bits & f.fraction_mask();
  const std::uint64_t exponent = (bits & f.exponent_mask()) >> f.mantissa_bits;
  const long double sign = (bits & f.sign_mask()) != 0 ? -1.0L : 1.0L;
  if (!IsFinite(dtype, bits)) {
    return fraction != 0 ? std::numeric_limits<long double>::quiet_NaN()
                         : sign * std::numeric_limits<long double>::infinity();
  }
  const std::uint64_t integer = exponent == 0 ? fraction : fraction | (f.fraction_mask() + 1);
  const int scale = f.min_exponent + (exponent == 0 ? 0 : static_cast<int>(exponent) - 1);
  return sign * std::ldexp(static_cast<long double>(integer), scale);
}

// The pattern nearest to `value`, ties to even; the canonical NaN for NaNs.
inline std::uint64_t Encode(DType dtype, long double value) {
  const Format f = FormatOf(dtype);
  if (std::isnan(value)) return CanonicalNan(dtype);
  const std::uint64_t sign = std::signbit(value) ? f.sign_mask() : 0;
  const long double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return sign | f.exponent_mask();
  if (magnitude == 0) return sign;
  const int unit = std::max(std::ilogb(magnitude) - f.mantissa_bits, f.min_exponent);
  // nearbyint rounds ties to even in the default mode; the scaling is exact.
  const auto integer = static_cast<std::uint64_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  // A carry out of the fraction moves on to the exponent by itself, up to infinity.
  const std::uint64_t pattern =
      (static_cast<std::uint64_t>(unit - f.min_exponent) << f.mantissa_bits) + integer;
  return sign | std::min(pattern, f.exponent_mask());
}

// A conversion: values are rounded once; a NaN keeps its sign and the upper bits of its payload and
// becomes quiet, except that bfloat16 to float32 and equal types keep the bits.
inline std::uint64_t Convert(DType from, std::uint64_t bits, DType to) {
  if (from == to) return bits;
  if (!IsNan(from, bits)) return Encode(to, Decode(from, bits));
  const Format a = FormatOf(from);
  const Format b = FormatOf(to);
  const std::uint64_t fraction = bits & a.fraction_mask();
  const std::uint64_t payload = b.mantissa_bits > a.mantissa_bits
                                    ? fraction << (b.mantissa_bits - a.mantissa_bits)
                                    : fraction >> (a.mantissa_bits - b.mantissa_bits);
  const bool keeps = from == DType::kBFloat16 && to == DType::kFloat32;
  return ((bits & a.sign_mask()) != 0 ? b.sign_mask() : 0) | b.exponent_mask() | payload |
         (keeps ? 0 : b.quiet_bit());
}

// Patterns as they lie in memory, and back.
inline std::vector<std::byte> Pack(DType dtype, const std::vector<std::uint64_t>& patterns) {
  const std::size_t width = ByteSize(dtype);
  std::vector<std::byte> bytes(patterns.size() * width);
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    std::memcpy(bytes.data() + i * width, &patterns[i], width);  // little endian
  }
  return bytes;
}

inline std::vector<std::uint64_t> Unpack(DType dtype, const std::byte* bytes, std::size_t numel) {
  const std::size_t width = ByteSize(dtype);
  std::vector<std::uint64_t> patterns(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    std::memcpy(&patterns[i], bytes + i * width, width);
  }
  return patterns;
}

inline std::vector<std::byte> PackValues(DType dtype, const std::vector<long double>& values) {
  std::vector<std::uint64_t> patterns;
  for (const long double value : values) patterns.push_back(Encode(dtype, value));
  return Pack(dtype, patterns);
}

// A small generator of pseudo-random bits (splitmix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  std::size_t Below(std::size_t limit) { return Next() % limit; }

 private:
  std::uint64_t state_;
};

// Any pattern of the dtype, NaNs and infinities included.
inline std::uint64_t RandomPattern(DType dtype, Random& random) {
  return random.Next() >> (64 - 8 * ByteSize(dtype));
}

// Patterns of values between 2^-8 and 2^8, either sign.
inline std::vector<std::uint64_t> ModeratePatterns(DType dtype, std::size_t numel,
                                                   std::uint64_t seed) {
  Random random(seed);
  std::vector<std::uint64_t> patterns;
  for (std::size_t i = 0; i < numel; ++i) {
    const std::uint64_t bits = random.Next();
    const long double fraction = 1.0L + std::ldexp(static_cast<long double>(bits >> 12), -52);
    const int exponent = static_cast<int>(bits & 15) - 8;
    patterns.push_back(
        Encode(dtype, std::ldexp((bits & 16) != 0 ? -fraction : fraction, exponent)));
  }
  return patterns;
}

}  // namespace gradwire::reference

// What the tests of the low-level loops share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "hooks/cpu/kernels.h"
#include "tests/hooks/reference.h"

namespace gradwire {

inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                    DType::kBFloat16};
inline constexpr DType kSixteenBits[] = {DType::kFloat16, DType::kBFloat16};

inline std::string Hex(std::uint64_t bits) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(bits));
  return text;
}

// Fails for the first difference only.
inline void ExpectPatterns(const std::vector<std::uint64_t>& expected,
                           const std::vector<std::uint64_t>& actual,
                           const std::vector<std::uint64_t>& inputs, const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(Hex(expected[i]), Hex(actual[i]))
        << what << ", element " << i << ", input " << Hex(inputs[i]);
  }
}

// All patterns of a 16-bit dtype; otherwise every exponent with fractions about the bits at which
// the narrower dtypes round, the midpoints between neighbouring 16-bit values with their own
// neighbours, and random patterns.
inline const std::vector<std::uint64_t>& TellingPatterns(DType dtype) {
  static const auto make = [](DType type) {
    std::vector<std::uint64_t> patterns;
    const reference::Format f = reference::FormatOf(type);
    if (ByteSize(type) == 2) {
      for (std::uint64_t i = 0; i < 65536; ++i) patterns.push_back(i);
      return patterns;
    }
    for (std::uint64_t exponent = 0; exponent < (1ULL << f.exponent_bits); ++exponent) {
      for (const int distance : {0, 1, 7, 8, 10, 11, 12, 22, 23, 24, f.mantissa_bits}) {
        const int bit = std::max(f.mantissa_bits - distance, 0);
        const std::uint64_t fraction = 1ULL << bit;
        for (const std::uint64_t m : {fraction - 1, fraction, fraction + 1, fraction * 3}) {
          const std::uint64_t pattern = (exponent << f.mantissa_bits) | (m & f.fraction_mask());
          patterns.push_back(pattern);
          patterns.push_back(pattern | f.sign_mask());
        }
      }
    }
    for (const DType small : kSixteenBits) {
      for (std::uint64_t i = 0; i < 0x7FFF; ++i) {
        if (!reference::IsFinite(small, i + 1)) continue;
        const long double middle =
            (reference::Decode(small, i) + reference::Decode(small, i + 1)) / 2;
        const std::uint64_t pattern = reference::Encode(type, middle);
        for (const std::uint64_t p : {pattern - 1, pattern, pattern + 1}) patterns.push_back(p);
      }
    }
    reference::Random random(7);
    for (int i = 0; i < 100000; ++i) patterns.push_back(reference::RandomPattern(type, random));
    return patterns;
  };
  static const std::vector<std::uint64_t> all[] = {make(DType::kFloat32), make(DType::kFloat64),
                                                   make(DType::kFloat16), make(DType::kBFloat16)};
  return all[static_cast<std::size_t>(dtype) - 1];
}

class KernelsTest : public ::testing::TestWithParam<cpu::Target> {
 protected:
  void SetUp() override { cpu::SetTargetForTesting(GetParam().id); }
  void TearDown() override { cpu::SetTargetForTesting(0); }
};

}  // namespace gradwire

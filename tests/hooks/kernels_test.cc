#include "hooks/cpu/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <tuple>

#include "tests/hooks/kernels_testing.h"
#include "tests/hooks/reference.h"

namespace gradwire {
namespace {

TEST(Kernels, ListsTheTargetsTested) {
  const std::vector<cpu::Target> targets = cpu::SupportedTargets();
  ASSERT_FALSE(targets.empty());
  std::printf("targets:");
  for (const cpu::Target& target : targets) std::printf(" %s", target.name.c_str());
  std::printf("\n");
}

TEST(Reference, AgreesWithTheCompilersFloatAndDouble) {
  for (const std::uint64_t bits : TellingPatterns(DType::kFloat64)) {
    double value;
    std::memcpy(&value, &bits, 8);
    if (std::isnan(value)) continue;
    const auto narrowed = static_cast<float>(value);
    std::uint32_t narrowed_bits;
    std::memcpy(&narrowed_bits, &narrowed, 4);
    ASSERT_EQ(reference::Decode(DType::kFloat64, bits), static_cast<long double>(value));
    ASSERT_EQ(reference::Encode(DType::kFloat32, value), narrowed_bits) << Hex(bits);
  }
}

// The cast rounded, then the quotient rounded.
std::uint64_t ExpectedQuotient(DType from, std::uint64_t input, DType to, int divisor) {
  const std::uint64_t cast = reference::Convert(from, input, to);
  if (divisor == 1) return cast;
  if (reference::IsNan(to, cast)) return cast | reference::FormatOf(to).quiet_bit();
  if (to == DType::kFloat64) {
    const double quotient = static_cast<double>(reference::Decode(to, cast)) / divisor;
    return reference::Encode(to, quotient);
  }
  // 64 bits of quotient are more than enough to round 24 correctly.
  return reference::Encode(to, reference::Decode(to, cast) / divisor);
}

// The same for all targets, so computed once.
const std::vector<std::uint64_t>& ExpectedQuotients(DType from, DType to, int divisor,
                                                    const std::vector<std::uint64_t>& inputs) {
  static std::map<std::tuple<DType, DType, int>, std::vector<std::uint64_t>> all;
  std::vector<std::uint64_t>& expected = all[{from, to, divisor}];
  if (expected.empty()) {
    for (const std::uint64_t input : inputs) {
      expected.push_back(ExpectedQuotient(from, input, to, divisor));
    }
  }
  return expected;
}

TEST_P(KernelsTest, ConvertRoundsOnceToNearestEven) {
  for (const DType from : kDTypes) {
    const std::vector<std::uint64_t>& inputs = TellingPatterns(from);
    const std::vector<std::byte> src = reference::Pack(from, inputs);
    for (const DType to : kDTypes) {
      std::vector<std::byte> dst(inputs.size() * ByteSize(to));
      cpu::Convert(from, src.data(), to, dst.data(), inputs.size());
      ExpectPatterns(ExpectedQuotients(from, to, 1, inputs),
                     reference::Unpack(to, dst.data(), inputs.size()), inputs,
                     Name(from) + " to " + Name(to));
    }
  }
}

TEST_P(KernelsTest, KnownRoundings) {
  const auto one = [](float value, DType to) {
    std::uint16_t bits = 0;
    cpu::Convert(DType::kFloat32, &value, to, &bits, 1);
    return bits;
  };
  EXPECT_EQ(one(65504.0F, DType::kFloat16), 0x7BFF);
  EXPECT_EQ(one(65519.996F, DType::kFloat16), 0x7BFF);
  EXPECT_EQ(one(65520.0F, DType::kFloat16), 0x7C00);  // infinity
  EXPECT_EQ(one(-65520.0F, DType::kFloat16), 0xFC00);
  EXPECT_EQ(one(0x1p-24F, DType::kFloat16), 0x0001);
  EXPECT_EQ(one(0x1p-25F, DType::kFloat16), 0x0000);  // a tie, to even
  EXPECT_EQ(one(0x1.8p-24F, DType::kFloat16), 0x0002);
  EXPECT_EQ(one(-0.0F, DType::kFloat16), 0x8000);
  EXPECT_EQ(one(0x1.01p0F, DType::kBFloat16), 0x3F80);  // a tie, to even
  EXPECT_EQ(one(0x1.03p0F, DType::kBFloat16), 0x3F82);
  EXPECT_EQ(one(0x1.01p0F + 0x1p-23F, DType::kBFloat16), 0x3F81);
  EXPECT_EQ(one(0x1.FFp127F, DType::kBFloat16), 0x7F80);  // infinity

  // By way of binary32 this would become a tie, and then 1.
  const double above_tie = 1 + 0x1p-11 + 0x1p-40;
  std::uint16_t half = 0;
  cpu::Convert(DType::kFloat64, &above_tie, DType::kFloat16, &half, 1);
  EXPECT_EQ(half, 0x3C01);
}

TEST_P(KernelsTest, ConvertTakesAnyLengthAndAlignment) {
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      for (std::size_t numel = 0; numel < 70; ++numel) {
        const auto inputs = reference::ModeratePatterns(from, numel, numel);
        const std::vector<std::byte> packed = reference::Pack(from, inputs);
        std::vector<std::byte> src(packed.size() + 1);
        std::copy(packed.begin(), packed.end(), src.begin() + 1);
        const std::size_t bytes = numel * ByteSize(to);
        std::vector<std::byte> dst(bytes + 2, std::byte{0xA5});
        cpu::Convert(from, src.data() + 1, to, dst.data() + 1, numel);
        std::vector<std::uint64_t> expected;
        for (const std::uint64_t input : inputs) {
          expected.push_back(reference::Convert(from, input, to));
        }
        ExpectPatterns(expected, reference::Unpack(to, dst.data() + 1, numel), inputs, "length");
        EXPECT_EQ(dst.front(), std::byte{0xA5});
        EXPECT_EQ(dst.back(), std::byte{0xA5});
      }
    }
  }
}

// Casts of all lengths to all offsets, by way of Convert, which other tests compare with the
// reference, or bytes as they are.
TEST_P(KernelsTest, CopiesAndStreamsWhereverTheyBeginAndEnd) {
  constexpr std::size_t kMost = 1200;  // some vectors of the widest target
  constexpr std::size_t kGuard = 130;
  std::vector<std::byte> src(2 * (kMost + kGuard));
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<std::byte>(i * 37 + i / 256);
  for (std::size_t numel = 0; numel < kMost; numel += 1 + numel / 64) {
    for (std::size_t shift = 0; shift < kGuard; shift += 3) {
      const std::byte* from = src.data() + shift / 2;
      for (const DType to : {DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
        const std::size_t bytes = numel * ByteSize(to);
        std::vector<std::byte> result(bytes);
        if (to == DType::kFloat16) {
          std::copy_n(from, bytes, result.begin());
        } else {
          cpu::Convert(DType::kFloat16, from, to, result.data(), numel);
        }
        std::vector<std::byte> expected(bytes + 2 * kGuard, std::byte{0xA5});
        std::copy(result.begin(), result.end(),
                  expected.begin() + static_cast<std::ptrdiff_t>(shift));
        for (const auto convert : {cpu::Convert, cpu::ConvertStreaming}) {
          std::vector<std::byte> dst(expected.size(), std::byte{0xA5});
          convert(DType::kFloat16, from, to, dst.data() + shift, numel);
          ASSERT_EQ(dst, expected) << numel << " elements to " << Name(to) << " at " << shift;
        }
      }
    }
  }
}

TEST_P(KernelsTest, StreamsEverySixteenBitElement) {
  for (const DType from : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<std::uint16_t> all(0x10000);
    std::iota(all.begin(), all.end(), std::uint16_t{0});
    std::vector<float> expected(all.size());
    std::vector<float> streamed(all.size());
    cpu::Convert(from, all.data(), DType::kFloat32, expected.data(), all.size());
    cpu::ConvertStreaming(from, all.data(), DType::kFloat32, streamed.data(), all.size());
    EXPECT_EQ(std::memcmp(expected.data(), streamed.data(), 4 * all.size()), 0) << Name(from);
  }
}

TEST_P(KernelsTest, ConvertAndDivideRoundsTheCastThenTheQuotient) {
  for (const DType from : kDTypes) {
    std::vector<std::uint64_t> inputs;
    const std::size_t stride = ByteSize(from) == 2 ? 1 : 7;
    for (std::size_t i = 0; i < TellingPatterns(from).size(); i += stride) {
      inputs.push_back(TellingPatterns(from)[i]);
    }
    const std::vector<std::byte> src = reference::Pack(from, inputs);
    for (const DType to : kDTypes) {
      for (const int divisor : {2, 3, 1000}) {
        std::vector<std::byte> dst(inputs.size() * ByteSize(to));
        cpu::ConvertAndDivide(from, src.data(), to, dst.data(), inputs.size(), divisor);
        ExpectPatterns(ExpectedQuotients(from, to, divisor, inputs),
                       reference::Unpack(to, dst.data(), inputs.size()), inputs,
                       Name(from) + " to " + Name(to) + " by " + std::to_string(divisor));
      }
    }
  }
}

// Every element by world sizes up to the one to which the header promises the correctly rounded
// quotient; by 31335, the first whole number whose reciprocal would not do for bfloat16; and by a
// fraction.
TEST_P(KernelsTest, DividesEverySixteenBitElementTruly) {
  std::vector<float> divisors = {2.5, 2047, 2048, 2049, 31335};
  for (int size = 2; size < 2047; size += size < 130 ? 1 : 71) {
    divisors.push_back(static_cast<float>(size));
  }
  for (const DType dtype : kSixteenBits) {
    const std::vector<std::uint64_t>& patterns = TellingPatterns(dtype);
    const std::vector<std::byte> elements = reference::Pack(dtype, patterns);
    std::vector<float> values(patterns.size());
    std::vector<float> quotients(patterns.size());
    std::vector<std::byte> expected(elements.size());
    std::vector<std::byte> actual(elements.size());
    cpu::Convert(dtype, elements.data(), DType::kFloat32, values.data(), values.size());
    for (const float divisor : divisors) {
      std::transform(values.begin(), values.end(), quotients.begin(),
                     [divisor](float value) { return value / divisor; });
      cpu::Convert(DType::kFloat32, quotients.data(), dtype, expected.data(), quotients.size());
      for (const bool is_cast : {false, true}) {
        const void* src = is_cast ? static_cast<const void*>(values.data()) : elements.data();
        cpu::ConvertAndDivide(is_cast ? DType::kFloat32 : dtype, src, dtype, actual.data(),
                              patterns.size(), divisor);
        if (expected == actual) continue;
        ExpectPatterns(reference::Unpack(dtype, expected.data(), patterns.size()),
                       reference::Unpack(dtype, actual.data(), patterns.size()), patterns,
                       Name(dtype) + " by " + std::to_string(divisor));
        return;
      }
    }
  }
}

TEST_P(KernelsTest, DivideWorksInPlace) {
  for (const DType dtype : kDTypes) {
    for (const int divisor : {1, 3}) {
      const auto inputs = reference::ModeratePatterns(dtype, 5003, 1);
      std::vector<std::byte> data = reference::Pack(dtype, inputs);
      cpu::ConvertAndDivide(dtype, data.data(), dtype, data.data(), inputs.size(), divisor);
      std::vector<std::uint64_t> expected;
      for (const std::uint64_t input : inputs) {
        expected.push_back(ExpectedQuotient(dtype, input, dtype, divisor));
      }
      ExpectPatterns(expected, reference::Unpack(dtype, data.data(), inputs.size()), inputs,
                     Name(dtype));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, KernelsTest, testing::ValuesIn(cpu::SupportedTargets()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace gradwire

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "hooks/cpu/kernels.h"
#include "tests/hooks/kernels_testing.h"
#include "tests/hooks/reference.h"

namespace gradwire {
namespace {

using reference::Random;

class KernelSumsTest : public KernelsTest {};

// The documented sum: float32 and float64 in double, 16 bits in float, in order, rounded at the
// end.
template <class Accumulator>
std::uint64_t SumInOrder(DType dtype, const std::vector<std::uint64_t>& inputs, double divisor) {
  auto sum = static_cast<Accumulator>(reference::Decode(dtype, inputs.front()));
  for (std::size_t k = 1; k < inputs.size(); ++k) {
    sum = sum + static_cast<Accumulator>(reference::Decode(dtype, inputs[k]));
  }
  if (divisor != 1) sum = sum / static_cast<Accumulator>(divisor);
  return reference::Encode(dtype, sum);
}

std::uint64_t ExpectedSum(DType dtype, const std::vector<std::uint64_t>& inputs, double divisor) {
  return ByteSize(dtype) == 2 ? SumInOrder<float>(dtype, inputs, divisor)
                              : SumInOrder<double>(dtype, inputs, divisor);
}

// Sums columns of `inputs`, which are per source, and compares with ExpectedSum.
void CheckSum(DType dtype, const std::vector<std::vector<std::uint64_t>>& inputs, double divisor) {
  const std::size_t numel = inputs.front().size();
  std::vector<std::vector<std::byte>> packed;
  std::vector<const void*> srcs;
  for (const auto& source : inputs) packed.push_back(reference::Pack(dtype, source));
  for (const auto& source : packed) srcs.push_back(source.data());
  std::vector<std::byte> dst(numel * ByteSize(dtype));
  const bool finite = cpu::Sum(dtype, srcs.data(), srcs.size(), divisor, dst.data(), numel);
  bool expected_finite = true;
  std::vector<std::uint64_t> expected;
  for (std::size_t i = 0; i < numel; ++i) {
    std::vector<std::uint64_t> column;
    for (const auto& source : inputs) column.push_back(source[i]);
    expected.push_back(ExpectedSum(dtype, column, divisor));
    expected_finite = expected_finite && reference::IsFinite(dtype, expected.back());
  }
  ExpectPatterns(expected, reference::Unpack(dtype, dst.data(), numel), inputs.front(),
                 Name(dtype) + " N=" + std::to_string(inputs.size()));
  EXPECT_EQ(finite, expected_finite);
}

TEST_P(KernelSumsTest, SumIsInOrderAndRoundedOnce) {
  for (const DType dtype : kDTypes) {
    for (std::size_t count = 1; count <= 9; ++count) {
      for (const double divisor : {1.0, 3.0, static_cast<double>(count)}) {
        std::vector<std::vector<std::uint64_t>> moderate;
        std::vector<std::vector<std::uint64_t>> any(count);
        Random random(count);
        for (std::size_t k = 0; k < count; ++k) {
          moderate.push_back(reference::ModeratePatterns(dtype, 5000, 31 * k + count));
          for (int i = 0; i < 5000; ++i) {
            any[k].push_back(reference::RandomPattern(dtype, random));
          }
        }
        CheckSum(dtype, moderate, divisor);
        CheckSum(dtype, any, divisor);
      }
    }
  }
}

// Beyond two steps of the widest target.
constexpr std::size_t kNumelPastTwoSteps = 140;

TEST_P(KernelSumsTest, SumTakesAnyLengthAndAlignment) {
  for (const DType dtype : kDTypes) {
    for (std::size_t numel = 0; numel < kNumelPastTwoSteps; ++numel) {
      std::vector<std::vector<std::uint64_t>> inputs;
      std::vector<std::vector<std::byte>> shifted;
      std::vector<const void*> srcs;
      for (std::size_t k = 0; k < 3; ++k) {
        inputs.push_back(reference::ModeratePatterns(dtype, numel, k));
        const std::size_t shift = (numel + k) % 35;
        shifted.emplace_back(shift);
        const std::vector<std::byte> packed = reference::Pack(dtype, inputs.back());
        shifted.back().insert(shifted.back().end(), packed.begin(), packed.end());
        srcs.push_back(shifted.back().data() + shift);
      }
      std::vector<std::byte> dst(numel * ByteSize(dtype) + 2, std::byte{0xA5});
      EXPECT_TRUE(cpu::Sum(dtype, srcs.data(), 3, 1, dst.data() + 1, numel));
      std::vector<std::uint64_t> expected;
      for (std::size_t i = 0; i < numel; ++i) {
        expected.push_back(ExpectedSum(dtype, {inputs[0][i], inputs[1][i], inputs[2][i]}, 1));
      }
      ExpectPatterns(expected, reference::Unpack(dtype, dst.data() + 1, numel), inputs[0],
                     Name(dtype) + " of length " + std::to_string(numel));
      EXPECT_EQ(dst.front(), std::byte{0xA5});
      EXPECT_EQ(dst.back(), std::byte{0xA5});
    }
  }
}

TEST_P(KernelSumsTest, AnyNanOrInfinityBesideAnyElement) {
  for (const DType dtype : kSixteenBits) {
    const std::vector<std::uint64_t>& all = TellingPatterns(dtype);
    const std::uint64_t infinity = reference::FormatOf(dtype).exponent_mask();
    CheckSum(dtype, {all}, 1);
    CheckSum(dtype, {all}, 3);
    for (const std::uint64_t one : {infinity, infinity | 0x8000, infinity | 1,
                                    std::uint64_t{0x7FFF}, std::uint64_t{0xFFFF}}) {
      const std::vector<std::uint64_t> other(all.size(), one);
      CheckSum(dtype, {all, other}, 1);
      CheckSum(dtype, {other, all, other}, 3);
    }
  }
}

TEST_P(KernelSumsTest, SumOfQuotientsIsThatOfDividedSources) {
  const DType f32 = DType::kFloat32;
  std::vector<std::vector<std::byte>> sources = {reference::Pack(f32, TellingPatterns(f32))};
  const std::size_t most = TellingPatterns(f32).size();
  std::vector<std::size_t> lengths = {most};
  for (std::size_t numel = 0; numel < kNumelPastTwoSteps; ++numel) lengths.push_back(numel);
  for (const std::size_t turn : {most / 3, most / 2}) {
    sources.push_back(sources[0]);
    std::rotate(sources.back().begin(),
                sources.back().begin() + static_cast<std::ptrdiff_t>(4 * turn),
                sources.back().end());
  }
  const void* srcs[] = {sources[0].data(), sources[1].data(), sources[2].data()};
  for (const double divisor : {1.0, 2.0, 3.0}) {
    std::vector<std::vector<std::byte>> quotients;
    std::vector<const void*> quotient_srcs;
    for (const auto& source : sources) {
      quotients.emplace_back(source.size());
      cpu::ConvertAndDivide(f32, source.data(), f32, quotients.back().data(), most, divisor);
    }
    for (const auto& quotient : quotients) quotient_srcs.push_back(quotient.data());
    for (const std::size_t numel : lengths) {
      std::vector<std::byte> expected(4 * numel + 1, std::byte{0xA5});
      std::vector<std::byte> actual = expected;
      const bool finite = cpu::Sum(f32, quotient_srcs.data(), 3, 1, expected.data(), numel);
      EXPECT_EQ(cpu::SumQuotients(srcs, 3, divisor, actual.data(), numel), finite);
      ASSERT_EQ(actual, expected) << numel << " elements by " << divisor;
    }
  }
}

// x + y correctly rounded, without any wide addition: a far smaller addend only matters by its
// sign.
std::uint64_t CorrectlyRoundedSum(DType dtype, std::uint64_t a, std::uint64_t b) {
  long double x = reference::Decode(dtype, a);
  long double y = reference::Decode(dtype, b);
  if (std::isfinite(x) && std::isfinite(y) && x != 0 && y != 0) {
    if (std::fabs(x) < std::fabs(y)) std::swap(x, y);
    const long double sticky = std::ldexp(1.0L, std::ilogb(x) - 36);
    if (std::fabs(y) < sticky) y = std::copysign(sticky, y);
  }
  return reference::Encode(dtype, x + y);
}

TEST_P(KernelSumsTest, TwoMembersGiveTheTypesOwnAddition) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    const std::vector<std::uint64_t>& a = TellingPatterns(dtype);
    std::vector<std::uint64_t> b;
    std::vector<std::uint64_t> expected;
    Random random(3);
    for (const std::uint64_t pattern : a) {
      // Half of the addends have nearly the same exponent.
      const std::uint64_t other = reference::RandomPattern(dtype, random);
      const std::uint64_t near =
          pattern ^ (other & (reference::FormatOf(dtype).fraction_mask() * 2));
      b.push_back((random.Next() & 1) != 0 ? other : near);
      expected.push_back(CorrectlyRoundedSum(dtype, pattern, b.back()));
    }
    const std::vector<std::byte> left = reference::Pack(dtype, a);
    const std::vector<std::byte> right = reference::Pack(dtype, b);
    const void* srcs[] = {left.data(), right.data()};
    std::vector<std::byte> dst(left.size());
    EXPECT_FALSE(cpu::Sum(dtype, srcs, 2, 1, dst.data(), a.size()));
    ExpectPatterns(expected, reference::Unpack(dtype, dst.data(), a.size()), a, Name(dtype));
  }
}

TEST_P(KernelSumsTest, SumMayWriteOverOneOfItsSources) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t target : {0U, 1U, 2U}) {
      std::vector<std::vector<std::uint64_t>> inputs;
      std::vector<std::vector<std::byte>> packed;
      std::vector<const void*> srcs;
      for (std::size_t k = 0; k < 3; ++k) {
        inputs.push_back(reference::ModeratePatterns(dtype, 4999, k));
        packed.push_back(reference::Pack(dtype, inputs.back()));
      }
      for (const auto& source : packed) srcs.push_back(source.data());
      EXPECT_TRUE(cpu::Sum(dtype, srcs.data(), 3, 1, packed[target].data(), 4999));
      std::vector<std::uint64_t> expected;
      for (std::size_t i = 0; i < 4999; ++i) {
        expected.push_back(ExpectedSum(dtype, {inputs[0][i], inputs[1][i], inputs[2][i]}, 1));
      }
      ExpectPatterns(expected, reference::Unpack(dtype, packed[target].data(), 4999), inputs[0],
                     Name(dtype));
    }
  }
}

TEST_P(KernelSumsTest, SumSeesANonFiniteResultAtEveryPosition) {
  constexpr std::size_t kNumel = kNumelPastTwoSteps;
  for (const DType dtype : kDTypes) {
    const std::uint64_t infinity = reference::FormatOf(dtype).exponent_mask();
    for (const std::uint64_t bad : {infinity, infinity | 1, infinity - 1}) {
      for (std::size_t at = 0; at < kNumel; ++at) {
        auto first = reference::ModeratePatterns(dtype, kNumel, 5);
        auto second = reference::ModeratePatterns(dtype, kNumel, 6);
        first[at] = second[at] = bad;  // infinity - 1 is the largest value: its double overflows
        CheckSum(dtype, {first, second}, 1);
      }
    }
  }
}

TEST_P(KernelSumsTest, OrderMatters) {
  const float big = 0x1p60F;
  const float one = 1;
  const float minus_big = -big;
  float result = 0;
  const void* lost[] = {&big, &one, &minus_big};
  EXPECT_TRUE(cpu::Sum(DType::kFloat32, lost, 3, 1, &result, 1));
  EXPECT_EQ(result, 0.0F);
  const void* kept[] = {&big, &minus_big, &one};
  EXPECT_TRUE(cpu::Sum(DType::kFloat32, kept, 3, 1, &result, 1));
  EXPECT_EQ(result, 1.0F);
}

INSTANTIATE_TEST_SUITE_P(Targets, KernelSumsTest, testing::ValuesIn(cpu::SupportedTargets()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace gradwire

#include "hooks/cpu/low_rank.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "hooks/cpu/kernels.h"
#include "tests/hooks/reference.h"

namespace gradwire {
namespace {

using reference::Random;

// Rows and columns below, at and above the sizes of vectors and of blocks.
std::vector<LowRankShape> Shapes() {
  std::vector<LowRankShape> shapes;
  for (const std::size_t rank : {1U, 2U, 3U, 4U, 5U, 8U, 9U, 17U}) {
    for (const std::size_t rows : {1U, 3U, 4U, 8U, 9U, 65U, 130U}) {
      for (const std::size_t cols : {1U, 3U, 8U, 15U, 17U, 147U, 513U}) {
        shapes.push_back({rows, cols, rank});
      }
    }
    shapes.push_back({5, 4611, rank});
    shapes.push_back({4611, 5, rank});
  }
  Random random(99);
  for (int i = 0; i < 60; ++i) {
    shapes.push_back({1 + random.Next() % 90, 1 + random.Next() % 1200, 1 + random.Next() % 40});
  }
  return shapes;
}

std::string Describe(LowRankShape shape) {
  return std::to_string(shape.rows) + "x" + std::to_string(shape.cols) + ", rank " +
         std::to_string(shape.rank);
}

// Values with elements before and after that nobody may touch, at an odd distance from alignment.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::size_t numel) : values_(numel + kBefore + kAfter, kGuard) {}
  Guarded(std::size_t numel, std::uint64_t seed) : Guarded(numel) {
    Random random(seed);
    for (std::size_t i = 0; i < numel; ++i) {
      data()[i] = static_cast<T>(static_cast<double>(random.Next() >> 11) * 0x1p-52 - 1);
    }
  }

  T* data() { return values_.data() + kBefore; }
  const T* data() const { return values_.data() + kBefore; }
  std::size_t size() const { return values_.size() - kBefore - kAfter; }
  T operator[](std::size_t i) const { return data()[i]; }

  bool intact() const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if ((i < kBefore || i >= kBefore + size()) && values_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kBefore = 3;
  static constexpr std::size_t kAfter = 17;
  static constexpr T kGuard = T{12345};

  std::vector<T> values_;
};

template <class T>
void ExpectSameBits(const Guarded<T>& expected, const Guarded<T>& actual, const std::string& what) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  ASSERT_EQ(expected.size(), actual.size());
  ASSERT_TRUE(actual.intact()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::bit_cast<Bits>(expected[i]), std::bit_cast<Bits>(actual[i]))
        << what << ", element " << i << ": " << expected[i] << " and " << actual[i];
  }
}

// A product with the norm that its terms would have if they were independent, which does not
// shrink where they happen to cancel.
struct Expected {
  std::vector<long double> values;
  long double squares = 0;

  void Add(std::size_t at, long double term) {
    values[at] += term;
    squares += term * term;
  }
};

// In units of half an ulp of 1, over all elements.
template <class T>
double RelativeError(const Expected& expected, const Guarded<T>& actual) {
  long double error = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const long double difference = static_cast<long double>(actual[i]) - expected.values[i];
    error += difference * difference;
  }
  return static_cast<double>(std::sqrt(error / expected.squares)) /
         (static_cast<double>(std::numeric_limits<T>::epsilon()) / 2);
}

// The sums of blocks are added in fp64.
template <class T>
double ErrorBound(std::size_t terms) {
  return std::is_same_v<T, float> ? 8 : 8 + std::sqrt(static_cast<double>(terms)) / 40;
}

template <class T>
Expected Product(LowRankShape shape, const Guarded<T>& m, const Guarded<T>& q) {
  Expected p{std::vector<long double>(shape.rows * shape.rank)};
  for (std::size_t i = 0; i < shape.rows; ++i) {
    for (std::size_t k = 0; k < shape.rank; ++k) {
      for (std::size_t j = 0; j < shape.cols; ++j) {
        p.Add(i * shape.rank + k,
              static_cast<long double>(m[i * shape.cols + j]) * q[k * shape.cols + j]);
      }
    }
  }
  return p;
}

template <class T>
Expected TransposedProduct(LowRankShape shape, const Guarded<T>& m, const Guarded<T>& p) {
  Expected q{std::vector<long double>(shape.rank * shape.cols)};
  for (std::size_t i = 0; i < shape.rows; ++i) {
    for (std::size_t k = 0; k < shape.rank; ++k) {
      for (std::size_t j = 0; j < shape.cols; ++j) {
        q.Add(k * shape.cols + j,
              static_cast<long double>(m[i * shape.cols + j]) * p[i * shape.rank + k]);
      }
    }
  }
  return q;
}

// By the definition in the header; the tests are compiled without fused multiply-add.
template <class T>
void SetToProduct(LowRankShape shape, const Guarded<T>& p, const Guarded<T>& q, Guarded<T>& x) {
  for (std::size_t i = 0; i < shape.rows; ++i) {
    for (std::size_t j = 0; j < shape.cols; ++j) {
      T sum = p[i * shape.rank] * q[j];
      for (std::size_t k = 1; k < shape.rank; ++k) {
        sum += p[i * shape.rank + k] * q[k * shape.cols + j];
      }
      x.data()[i * shape.cols + j] = sum;
    }
  }
}

template <class T>
void Subtract(const Guarded<T>& a, const Guarded<T>& b, Guarded<T>& difference) {
  for (std::size_t i = 0; i < a.size(); ++i) difference.data()[i] = a[i] - b[i];
}

template <class T>
void CheckAddAndMultiply(LowRankShape shape) {
  const std::string what = Describe(shape);
  const Guarded<T> q(shape.rank * shape.cols, 3);
  const Guarded<T> residual(shape.rows * shape.cols, 2);
  Guarded<T> m(shape.rows * shape.cols, 1);
  Guarded<T> sum = m;
  for (std::size_t i = 0; i < sum.size(); ++i) sum.data()[i] += residual[i];
  Guarded<T> p(shape.rows * shape.rank);

  const Guarded<T> before = m;
  cpu::AddAndMultiply<T>(shape, m.data(), nullptr, q.data(), p.data());
  ExpectSameBits(before, m, what);
  ASSERT_TRUE(p.intact()) << what;
  ASSERT_LT(RelativeError(Product(shape, m, q), p), ErrorBound<T>(shape.cols)) << what;

  cpu::AddAndMultiply<T>(shape, m.data(), residual.data(), q.data(), p.data());
  ExpectSameBits(sum, m, what);
  ASSERT_TRUE(p.intact()) << what;
  ASSERT_LT(RelativeError(Product(shape, sum, q), p), ErrorBound<T>(shape.cols)) << what;
}

template <class T>
void CheckTransposeMultiply(LowRankShape shape) {
  const Guarded<T> m(shape.rows * shape.cols, 1);
  const Guarded<T> p(shape.rows * shape.rank, 2);
  Guarded<T> q(shape.rank * shape.cols);
  cpu::TransposeMultiply<T>(shape, m.data(), p.data(), q.data());
  ASSERT_TRUE(q.intact()) << Describe(shape);
  ASSERT_LT(RelativeError(TransposedProduct(shape, m, p), q), ErrorBound<T>(shape.rows))
      << Describe(shape);
}

template <class T>
void CheckReconstruct(LowRankShape shape) {
  const std::string what = Describe(shape);
  const std::size_t numel = shape.rows * shape.cols;
  const Guarded<T> m(numel, 1);
  const Guarded<T> p(shape.rows * shape.rank, 2);
  const Guarded<T> q(shape.rank * shape.cols, 3);
  Guarded<T> x(numel);
  SetToProduct(shape, p, q, x);
  Guarded<T> residual(numel);
  Subtract(m, x, residual);

  Guarded<T> matrix = m;
  Guarded<T> rest(numel);
  cpu::ReconstructAndSubtract<T>(shape, matrix.data(), p.data(), q.data(), rest.data());
  ExpectSameBits(x, matrix, what);
  ExpectSameBits(residual, rest, what);

  matrix = m;
  cpu::ReconstructAndSubtract<T>(shape, matrix.data(), p.data(), q.data(), nullptr);
  ExpectSameBits(x, matrix, what);
}

class LowRankTest : public testing::TestWithParam<cpu::Target> {
 protected:
  void SetUp() override { cpu::SetTargetForTesting(GetParam().id); }
  void TearDown() override { cpu::SetTargetForTesting(0); }
};

TEST_P(LowRankTest, AddsAndMultiplies) {
  for (const LowRankShape shape : Shapes()) {
    CheckAddAndMultiply<float>(shape);
    CheckAddAndMultiply<double>(shape);
  }
}

TEST_P(LowRankTest, MultipliesTransposed) {
  for (const LowRankShape shape : Shapes()) {
    CheckTransposeMultiply<float>(shape);
    CheckTransposeMultiply<double>(shape);
  }
}

TEST_P(LowRankTest, ReconstructsWithTheSameBits) {
  for (const LowRankShape shape : Shapes()) {
    CheckReconstruct<float>(shape);
    CheckReconstruct<double>(shape);
  }
}

// Large enough for the residual to bypass the caches; rows of every alignment.
TEST_P(LowRankTest, TakesLargeMatrices) {
  for (const LowRankShape shape :
       {LowRankShape{457, 650, 2}, {3001, 129, 1}, {64, 4608, 4}, {300003, 1, 1}, {1, 300003, 3}}) {
    CheckAddAndMultiply<float>(shape);
    CheckTransposeMultiply<float>(shape);
    CheckReconstruct<float>(shape);
    CheckReconstruct<double>(shape);
  }
}

TEST_P(LowRankTest, AcceptsNoRowsOrColumns) {
  float p[2] = {7, 7};
  cpu::AddAndMultiply<float>({2, 0, 1}, nullptr, nullptr, nullptr, p);
  EXPECT_EQ(p[0], 0);
  EXPECT_EQ(p[1], 0);
  float q[2] = {7, 7};
  cpu::TransposeMultiply<float>({0, 2, 1}, nullptr, nullptr, q);
  EXPECT_EQ(q[0], 0);
  EXPECT_EQ(q[1], 0);
}

TEST_P(LowRankTest, Adds) {
  for (std::size_t numel = 0; numel < 70; ++numel) {
    const Guarded<double> from(numel, 1);
    Guarded<double> into(numel, 2);
    Guarded<double> expected = into;
    for (std::size_t i = 0; i < numel; ++i) expected.data()[i] += from[i];
    cpu::Add<double>(numel, into.data(), from.data());
    ExpectSameBits(expected, into, std::to_string(numel));
  }
  const Guarded<float> from(100001, 1);
  Guarded<float> into(100001, 2);
  Guarded<float> expected = into;
  for (std::size_t i = 0; i < from.size(); ++i) expected.data()[i] += from[i];
  cpu::Add<float>(from.size(), into.data(), from.data());
  ExpectSameBits(expected, into, "float");
}

template <class T>
void ExpectSumOfSquares(std::size_t numel, double scale) {
  Guarded<T> values(numel, 1);
  long double expected = 0;
  for (std::size_t i = 0; i < numel; ++i) {
    values.data()[i] = static_cast<T>(values[i] * scale);
    expected += static_cast<long double>(values[i]) * values[i];
  }
  // A rounding of each square and of each sum.
  const double tolerance = static_cast<double>(2 * numel) * 0x1p-53 * static_cast<double>(expected);
  EXPECT_NEAR(cpu::SumOfSquares<T>(numel, values.data()), static_cast<double>(expected), tolerance)
      << numel;
}

TEST_P(LowRankTest, SumsSquares) {
  for (std::size_t numel = 0; numel < 150; ++numel) {
    ExpectSumOfSquares<float>(numel, 1);
    ExpectSumOfSquares<double>(numel, 1);
  }
  // Their squares are infinite in float.
  ExpectSumOfSquares<float>(100001, 1e30);
  ExpectSumOfSquares<double>(100001, 1e100);
}

INSTANTIATE_TEST_SUITE_P(Targets, LowRankTest, testing::ValuesIn(cpu::SupportedTargets()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace gradwire

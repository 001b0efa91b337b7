#include "tests/cuda/device_conformance.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "hooks/cpu/host_device.h"
#include "hooks/device_vector.h"
#include "tests/hooks/kernels_testing.h"
#include "tests/hooks/reference.h"

namespace gradwire::conformance {
namespace {

using reference::Random;

// An array of the host's and its copy on a device, `offset` elements from alignment.
template <class T>
class Mirrored {
 public:
  Mirrored(Device& device, std::vector<T> values, std::size_t offset = 0)
      : host(std::move(values)), device_(&device), there_(device), offset_(offset) {
    std::vector<T> padded(host.size() + 2 * offset, T());
    std::copy(host.begin(), host.end(), padded.begin() + static_cast<std::ptrdiff_t>(offset));
    there_.Upload(padded.data(), padded.size());
  }

  T* at() { return there_.data() + offset_; }
  std::vector<T> Download() {
    std::vector<T> values(host.size());
    EXPECT_TRUE(device_->Download(values.data(), at(), values.size() * sizeof(T)));
    return values;
  }

  std::vector<T> host;

 private:
  Device* device_;
  DeviceVector<T> there_;
  std::size_t offset_;
};

template <class T>
void ExpectSameBits(const std::vector<T>& expected, const std::vector<T>& actual,
                    const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::memcmp(&expected[i], &actual[i], sizeof(T)), 0)
        << what << ", element " << i << ": " << +expected[i] << " and " << +actual[i];
  }
}

template <class T>
std::vector<T> RandomValues(std::size_t numel, std::uint64_t seed) {
  Random random(seed);
  std::vector<T> values(numel);
  for (T& value : values) {
    value = static_cast<T>(static_cast<double>(random.Next() >> 11) * 0x1p-52 - 1);
  }
  return values;
}

std::vector<std::uint8_t> Bytes(DType dtype, const std::vector<std::uint64_t>& patterns) {
  const std::vector<std::byte> packed = reference::Pack(dtype, patterns);
  std::vector<std::uint8_t> bytes(packed.size());
  std::memcpy(bytes.data(), packed.data(), packed.size());
  return bytes;
}

// Some thousand telling patterns of a dtype, from different parts of them.
std::vector<std::uint64_t> Patterns(DType dtype, std::size_t numel, std::size_t start = 0) {
  const std::vector<std::uint64_t>& all = TellingPatterns(dtype);
  std::vector<std::uint64_t> some(numel);
  for (std::size_t i = 0; i < numel; ++i) some[i] = all[(start + i * 7919) % all.size()];
  return some;
}

// ---- Casts, quotients and sums

TEST_P(DeviceConformance, ConvertsAndDividesAsTheHostDoes) {
  const auto host = MakeHostDevice();
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      const std::vector<std::uint64_t>& all = TellingPatterns(from);
      for (const double divisor : {1.0, 2.0, 3.0, 7.0, 1000.0}) {
        // Aligned to 16 bytes and not: both paths.
        for (const std::size_t offset : {0U, 1U}) {
          const auto patterns = offset == 0 && divisor == 3 ? all : Patterns(from, 4099);
          Mirrored<std::uint8_t> src(device(), Bytes(from, patterns), offset * ByteSize(from));
          Mirrored<std::uint8_t> dst(device(),
                                     std::vector<std::uint8_t>(patterns.size() * ByteSize(to)));
          device().ConvertAndDivide(from, src.at(), to, dst.at(), patterns.size(), divisor);
          std::vector<std::uint8_t> expected(dst.host.size());
          host->ConvertAndDivide(from, src.host.data(), to, expected.data(), patterns.size(),
                                 divisor);
          const auto actual = dst.Download();
          ExpectPatterns(reference::Unpack(to, reinterpret_cast<const std::byte*>(expected.data()),
                                           patterns.size()),
                         reference::Unpack(to, reinterpret_cast<const std::byte*>(actual.data()),
                                           patterns.size()),
                         patterns,
                         Name(from) + " to " + Name(to) + " by " + std::to_string(divisor));
        }
      }
    }
  }
}

TEST_P(DeviceConformance, SumsAsTheHostDoes) {
  const auto host = MakeHostDevice();
  for (const DType dtype : kDTypes) {
    for (const std::size_t count : {1U, 2U, 3U, 5U, 70U}) {
      for (const bool finite : {true, false}) {
        for (const double divisor : {1.0, 3.0}) {
          constexpr std::size_t kNumel = 1003;
          std::vector<Mirrored<std::uint8_t>> sources;
          std::vector<const void*> there;
          std::vector<const void*> here;
          for (std::size_t k = 0; k < count; ++k) {
            const auto patterns = finite ? reference::ModeratePatterns(dtype, kNumel, k + 1)
                                         : Patterns(dtype, kNumel, k * 31);
            // One of them off alignment takes the other path.
            sources.emplace_back(device(), Bytes(dtype, patterns),
                                 count == 3 && k == 1 ? ByteSize(dtype) : 0);
          }
          for (auto& source : sources) {
            there.push_back(source.at());
            here.push_back(source.host.data());
          }
          Mirrored<std::uint8_t> dst(device(), std::vector<std::uint8_t>(kNumel * ByteSize(dtype)));
          Mirrored<std::uint32_t> flag(device(), {0});
          device().Sum(dtype, there, divisor, dst.at(), kNumel, flag.at());
          std::vector<std::uint8_t> expected(dst.host.size());
          std::uint32_t expected_flag = 0;
          host->Sum(dtype, here, divisor, expected.data(), kNumel, &expected_flag);
          ExpectSameBits(expected, dst.Download(), Name(dtype) + " of " + std::to_string(count));
          EXPECT_EQ(flag.Download().front(), expected_flag);
        }
      }
    }
  }
}

TEST_P(DeviceConformance, SumsQuotientsAsTheHostDoes) {
  const auto host = MakeHostDevice();
  constexpr std::size_t kNumel = 20011;
  for (const double divisor : {1.0, 3.0, 4.0}) {
    std::vector<Mirrored<std::uint8_t>> sources;
    std::vector<const void*> there;
    std::vector<const void*> here;
    for (std::size_t k = 0; k < 3; ++k) {
      sources.emplace_back(device(),
                           Bytes(DType::kFloat32, Patterns(DType::kFloat32, kNumel, k * 977)));
    }
    for (auto& source : sources) {
      there.push_back(source.at());
      here.push_back(source.host.data());
    }
    Mirrored<std::uint8_t> dst(device(), std::vector<std::uint8_t>(kNumel * sizeof(float)));
    Mirrored<std::uint32_t> flag(device(), {0});
    device().SumQuotients(there, divisor, dst.at(), kNumel, flag.at());
    std::vector<std::uint8_t> expected(dst.host.size());
    std::uint32_t expected_flag = 0;
    host->SumQuotients(here, divisor, expected.data(), kNumel, &expected_flag);
    ExpectSameBits(expected, dst.Download(), "by " + std::to_string(divisor));
    EXPECT_EQ(flag.Download().front(), expected_flag);
  }
}

// ---- PowerSGD's passes

// Sizes about those of tiles, warps and splits, aligned rows and others, and ranks of each kernel.
std::vector<LowRankShape> Shapes() {
  return {{1, 1, 1},     {3, 5, 1},    {33, 64, 2},  {40, 128, 3},  {9, 513, 4},   {130, 96, 5},
          {5, 4611, 4},  {4611, 5, 2}, {70, 300, 8}, {65, 260, 16}, {34, 132, 17}, {20, 9000, 1},
          {2100, 12, 4}, {36, 64, 32}, {37, 41, 33}, {8, 70, 40}};
}

std::string Describe(LowRankShape s) {
  return std::to_string(s.rows) + "x" + std::to_string(s.cols) + ", rank " + std::to_string(s.rank);
}

// Of the error's norm, in units of half an ulp of 1, relative to the norm that the terms would have
// if they were independent.
template <class T>
double RelativeError(const std::vector<T>& actual, const std::vector<long double>& expected,
                     long double squares) {
  long double error = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const long double difference = static_cast<long double>(actual[i]) - expected[i];
    error += difference * difference;
  }
  return static_cast<double>(std::sqrt(error / squares)) /
         (static_cast<double>(std::numeric_limits<T>::epsilon()) / 2);
}

// That of the host's products (low_rank_test).
constexpr double kErrorBound = 8;

template <class T>
void CheckProducts(Device& device, LowRankShape s) {
  const auto host = MakeHostDevice();
  const std::size_t numel = s.rows * s.cols;
  Mirrored<T> m(device, RandomValues<T>(numel, 1));
  Mirrored<T> residual(device, RandomValues<T>(numel, 2));
  Mirrored<T> q(device, RandomValues<T>(s.rank * s.cols, 3));
  Mirrored<T> p(device, std::vector<T>(s.rows * s.rank));
  const ProductOperands<T> operands{s, m.at(), residual.at(), q.at(), p.at()};
  device.low_rank<T>().AddAndMultiply(std::span(&operands, 1));
  host->low_rank<T>().Add(numel, m.host.data(), residual.host.data());
  ExpectSameBits(m.host, m.Download(), "M + R of " + Describe(s));
  std::vector<long double> products(s.rows * s.rank);
  long double squares = 0;
  for (std::size_t i = 0; i < s.rows; ++i) {
    for (std::size_t k = 0; k < s.rank; ++k) {
      for (std::size_t j = 0; j < s.cols; ++j) {
        const long double term =
            static_cast<long double>(m.host[i * s.cols + j]) * q.host[k * s.cols + j];
        products[i * s.rank + k] += term;
        squares += term * term;
      }
    }
  }
  ASSERT_LT(RelativeError(p.Download(), products, squares), kErrorBound) << Describe(s);

  p = Mirrored<T>(device, RandomValues<T>(s.rows * s.rank, 4));
  const TransposedOperands<T> transposed{s, m.at(), p.at(), q.at()};
  device.low_rank<T>().TransposeMultiply(std::span(&transposed, 1));
  products.assign(s.rank * s.cols, 0);
  squares = 0;
  for (std::size_t i = 0; i < s.rows; ++i) {
    for (std::size_t k = 0; k < s.rank; ++k) {
      for (std::size_t j = 0; j < s.cols; ++j) {
        const long double term =
            static_cast<long double>(m.host[i * s.cols + j]) * p.host[i * s.rank + k];
        products[k * s.cols + j] += term;
        squares += term * term;
      }
    }
  }
  ASSERT_LT(RelativeError(q.Download(), products, squares), kErrorBound) << Describe(s);
}

TEST_P(DeviceConformance, MultipliesWithinTheHostsTolerance) {
  for (const LowRankShape shape : Shapes()) {
    CheckProducts<float>(device(), shape);
    CheckProducts<double>(device(), shape);
  }
}

template <class T>
void CheckReconstruct(Device& device, LowRankShape s, bool keeps_residual) {
  const auto host = MakeHostDevice();
  Mirrored<T> m(device, RandomValues<T>(s.rows * s.cols, 1));
  Mirrored<T> p(device, RandomValues<T>(s.rows * s.rank, 2));
  Mirrored<T> q(device, RandomValues<T>(s.rank * s.cols, 3));
  Mirrored<T> residual(device, RandomValues<T>(s.rows * s.cols, 4));
  const ReconstructOperands<T> there{s, m.at(), p.at(), q.at(),
                                     keeps_residual ? residual.at() : nullptr};
  device.low_rank<T>().ReconstructAndSubtract(std::span(&there, 1));
  const ReconstructOperands<T> here{s, m.host.data(), p.host.data(), q.host.data(),
                                    keeps_residual ? residual.host.data() : nullptr};
  host->low_rank<T>().ReconstructAndSubtract(std::span(&here, 1));
  ExpectSameBits(m.host, m.Download(), "P Q^T of " + Describe(s));
  ExpectSameBits(residual.host, residual.Download(), "residual of " + Describe(s));
}

TEST_P(DeviceConformance, ReconstructsTheHostsBits) {
  for (const LowRankShape shape : Shapes()) {
    for (const bool keeps_residual : {true, false}) {
      CheckReconstruct<float>(device(), shape, keeps_residual);
      CheckReconstruct<double>(device(), shape, keeps_residual);
    }
  }
}

template <class T>
void CheckOrthonormalize(Device& device, MatrixShape shape, double epsilon,
                         const std::vector<T>& values) {
  const auto host = MakeHostDevice();
  Mirrored<T> from(device, values);
  Mirrored<T> to(device, std::vector<T>(values.size()));
  const FactorOperands<T> there{shape, from.at(), to.at()};
  const FactorOperands<T> here{shape, from.host.data(), to.host.data()};
  device.low_rank<T>().Orthonormalize(epsilon, std::span(&there, 1));
  host->low_rank<T>().Orthonormalize(epsilon, std::span(&here, 1));
  ExpectSameBits(to.host, to.Download(),
                 std::to_string(shape.rows) + "x" + std::to_string(shape.cols));
}

template <class T>
void CheckOrthonormalizing(Device& device) {
  for (const MatrixShape shape : std::vector<MatrixShape>{
           {1, 1}, {2, 2}, {5, 3}, {100, 4}, {256, 2}, {300, 1}, {1025, 5}, {24, 24}}) {
    for (const double epsilon : {0.0, 1e-8}) {
      std::vector<T> values = RandomValues<T>(shape.numel(), shape.rows);
      CheckOrthonormalize(device, shape, epsilon, values);
      // Two equal columns, a column of zeros, then all zeros: columns are replaced.
      for (std::size_t row = 0; row < shape.rows; ++row) {
        values[row * shape.cols + shape.cols - 1] = values[row * shape.cols];
      }
      CheckOrthonormalize(device, shape, epsilon, values);
      for (std::size_t row = 0; row < shape.rows; ++row) values[row * shape.cols] = 0;
      CheckOrthonormalize(device, shape, epsilon, values);
      CheckOrthonormalize(device, shape, epsilon, std::vector<T>(shape.numel()));
    }
    std::vector<T> values = RandomValues<T>(shape.numel(), 5);
    values.back() = std::numeric_limits<T>::infinity();
    CheckOrthonormalize(device, shape, 0, values);
    for (T& value : values) value = std::numeric_limits<T>::denorm_min();
    CheckOrthonormalize(device, shape, 0, values);
    values.front() = std::numeric_limits<T>::max();
    CheckOrthonormalize(device, shape, 0, values);
  }
}

TEST_P(DeviceConformance, OrthonormalizesToTheHostsBits) {
  CheckOrthonormalizing<float>(device());
  CheckOrthonormalizing<double>(device());
}

TEST_P(DeviceConformance, TakesManyFactorsAtOnce) {
  const auto host = MakeHostDevice();
  std::vector<Mirrored<float>> from;
  std::vector<Mirrored<float>> to;
  std::vector<MatrixShape> shapes;
  for (std::size_t i = 0; i < 70; ++i) {  // more than a launch describes
    shapes.push_back({10 + i, 1 + i % 4});
    from.emplace_back(device(), RandomValues<float>(shapes.back().numel(), i));
    to.emplace_back(device(), std::vector<float>(shapes.back().numel()));
  }
  for (const bool transposes : {true, false}) {
    std::vector<FactorOperands<float>> there;
    std::vector<FactorOperands<float>> here;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      there.push_back({shapes[i], from[i].at(), to[i].at()});
      here.push_back({shapes[i], from[i].host.data(), to[i].host.data()});
    }
    if (transposes) {
      device().floats().Transpose(there);
      host->floats().Transpose(here);
    } else {
      device().floats().Orthonormalize(0, there);
      host->floats().Orthonormalize(0, here);
    }
    for (std::size_t i = 0; i < to.size(); ++i) {
      ExpectSameBits(to[i].host, to[i].Download(), "factor " + std::to_string(i));
    }
  }
}

template <class T>
void CheckElementwise(Device& device) {
  const auto host = MakeHostDevice();
  constexpr std::size_t kNumel = 10007;
  Mirrored<T> values(device, RandomValues<T>(kNumel, 1));
  Mirrored<T> others(device, RandomValues<T>(kNumel, 2), 1);
  device.low_rank<T>().Add(kNumel, values.at(), others.at());
  host->low_rank<T>().Add(kNumel, values.host.data(), others.host.data());
  device.low_rank<T>().Scale(kNumel, values.at(), 1.1);
  host->low_rank<T>().Scale(kNumel, values.host.data(), 1.1);
  ExpectSameBits(values.host, values.Download(), "sums, scaled");
  for (const DType wire : kDTypes) {
    Mirrored<std::uint8_t> in(device, Bytes(wire, Patterns(wire, kNumel)));
    for (const ResidualOf of : {ResidualOf::kNothing, ResidualOf::kResult, ResidualOf::kWire}) {
      device.low_rank<T>().TakeResults(wire, in.at(), kNumel, values.at(), of, others.at());
      host->low_rank<T>().TakeResults(wire, in.host.data(), kNumel, values.host.data(), of,
                                      others.host.data());
      ExpectSameBits(values.host, values.Download(), "results of " + Name(wire));
      // Differences that involve a NaN are NaN; which one is up to the processor.
      const auto residuals = others.Download();
      for (std::size_t i = 0; i < kNumel; ++i) {
        if (std::isnan(others.host[i]) && std::isnan(residuals[i])) continue;
        ASSERT_EQ(std::memcmp(&others.host[i], &residuals[i], sizeof(T)), 0) << i;
      }
      values = Mirrored<T>(device, RandomValues<T>(kNumel, 3));
      others = Mirrored<T>(device, RandomValues<T>(kNumel, 4), 1);
    }
    device.low_rank<T>().RoundTo(wire, kNumel, values.at());
    host->low_rank<T>().RoundTo(wire, kNumel, values.host.data());
    ExpectSameBits(values.host, values.Download(), "rounded to " + Name(wire));
  }
}

TEST_P(DeviceConformance, TreatsElementsAsTheHostDoes) {
  CheckElementwise<float>(device());
  CheckElementwise<double>(device());
}

TEST_P(DeviceConformance, AddsSquares) {
  for (const std::size_t numel : {0U, 1U, 1000U, 1'300'000U}) {
    Mirrored<float> values(device(), RandomValues<float>(numel, 1));
    Mirrored<double> sum(device(), {3});
    device().floats().AddSquares(numel, values.at(), sum.at());
    long double expected = 3;
    for (const float value : values.host) expected += static_cast<long double>(value) * value;
    EXPECT_NEAR(sum.Download().front(), static_cast<double>(expected),
                1e-12 * static_cast<double>(expected));
  }
}

// ---- Memory

TEST_P(DeviceConformance, MovesArraysOfAnySize) {
  for (const std::size_t bytes : {1U, 1000U, 1U << 20, (5U << 20) + 3}) {
    Random random(bytes);
    std::vector<std::uint8_t> values(bytes);
    for (auto& value : values) value = static_cast<std::uint8_t>(random.Next());
    Mirrored<std::uint8_t> from(device(), values);
    Mirrored<std::uint8_t> to(device(), std::vector<std::uint8_t>(bytes));
    device().Copy(to.at(), from.at(), bytes);
    device().Zero(from.at(), bytes);
    ExpectSameBits(values, to.Download(), "copied");
    ExpectSameBits(std::vector<std::uint8_t>(bytes), from.Download(), "zeroed");
  }
}

TEST_P(DeviceConformance, SaysWhenItsWorkIsComplete) {
  Mirrored<float> values(device(), RandomValues<float>(1000, 1));
  device().floats().Scale(1000, values.at(), 2);
  const DeviceMark first = device().Record();
  device().floats().Scale(1000, values.at(), 2);
  const DeviceMark second = device().Record();
  values.Download();
  EXPECT_TRUE(device().IsComplete(first));
  EXPECT_TRUE(device().IsComplete(second));
}

}  // namespace

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceConformance);

}  // namespace gradwire::conformance

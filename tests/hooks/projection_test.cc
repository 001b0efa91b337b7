// Projections against their definition: what is read, with which weight, and that nothing but the
// signs is left to chance.
#include "hooks/projection.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/hooks/reference.h"

namespace gradwire {
namespace {

using Vector = std::vector<double>;

// About the edges of a block, which has 64 elements, and of the stride from one to the next, 1024.
const std::vector<std::size_t> kSizes = {1,    2,    63,   64,   65,   1023, 1024,
                                         1025, 1087, 1088, 1089, 2048, 5000, 70001};

Vector RandomVector(std::size_t numel, std::uint32_t seed) {
  std::mt19937 words(seed);
  std::normal_distribution<double> normal;
  Vector values(numel);
  for (double& value : values) value = normal(words);
  return values;
}

TensorView View(Vector& values) { return {DType::kFloat64, values.data(), values.size()}; }

Projection Project(const std::string& name, Vector values) {
  return Projector(name, values.size()).Of(View(values));
}

// The squared norm's estimate by the header's words.
double SquaresOf(const Vector& values) {
  double sum = 0;
  double read = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i / 64 % 16 != 0) continue;
    sum += values[i] * values[i];
    read += 1;
  }
  return sum * static_cast<double>(values.size()) / read;
}

TEST(Projection, IsLinear) {
  for (const std::size_t numel : kSizes) {
    const Vector a = RandomVector(numel, 1);
    const Vector b = RandomVector(numel, 2);
    Vector sum(numel);
    for (std::size_t i = 0; i < numel; ++i) sum[i] = 3 * a[i] + b[i];
    const double want = 3 * Project("w", a).value + Project("w", b).value;
    EXPECT_NEAR(Project("w", sum).value, want, 1e-12 * std::sqrt(SquaresOf(sum))) << numel;
  }
}

TEST(Projection, SquaresAreThoseOfTheElementsThatAreRead) {
  for (const std::size_t numel : kSizes) {
    const Vector values = RandomVector(numel, 3);
    const double want = SquaresOf(values);
    EXPECT_NEAR(Project("w", values).squares, want, 1e-12 * want) << numel;
    const double norm = static_cast<double>(numel) * 0.7 * 0.7;
    EXPECT_NEAR(Project("w", Vector(numel, 0.7)).squares, norm, 1e-12 * norm) << numel;
  }
}

// Every element by itself: its weight is ±sqrt(numel / read), or 0 if it is not read.
TEST(Projection, GivesEachElementItsSignAndWeight) {
  for (const std::size_t numel : {1U, 65U, 1025U, 2050U}) {
    const Projector projector("w", numel);
    std::size_t all_read = 0;
    for (std::size_t i = 0; i < numel; ++i) all_read += i / 64 % 16 == 0 ? 1 : 0;
    const double weight = std::sqrt(static_cast<double>(numel) / static_cast<double>(all_read));
    std::size_t plus = 0;
    for (std::size_t i = 0; i < numel; ++i) {
      Vector unit(numel);
      unit[i] = -2;
      const double value = projector.Of(View(unit)).value;
      const bool is_read = i / 64 % 16 == 0;
      EXPECT_NEAR(std::abs(value), is_read ? 2 * weight : 0, 1e-12) << i << " of " << numel;
      plus += value < 0 ? 1 : 0;
    }
    if (numel == 1) continue;
    EXPECT_GT(plus, all_read / 4) << "nearly all signs are -1";
    EXPECT_LT(plus, all_read * 3 / 4) << "nearly all signs are +1";
  }
}

TEST(Projection, OfOneElementIsItsMagnitude) {
  for (const double x : {1.5, -3e-9, 1e30, 0.0}) {
    for (const char* name : {"a", "b", "c", "d"}) {
      const Projection projection = Project(name, {x});
      EXPECT_EQ(std::abs(projection.value), std::abs(x));
      EXPECT_EQ(projection.squares, x * x);
      EXPECT_TRUE(projection.is_finite());
    }
  }
}

TEST(Projection, PartsAddUpToTheWhole) {
  for (const std::size_t numel : kSizes) {
    Vector values = RandomVector(numel, 4);
    const Projector projector("w", numel);
    const Projection whole = projector.Of(View(values));
    for (const std::size_t length : {1U, 7U, 61U, 64U, 333U, 1023U, 1025U, 4097U}) {
      if (length < 8 && numel > 10000) continue;
      Projection sum;
      for (std::size_t first = 0; first < numel; first += length) {
        const std::size_t count = std::min<std::size_t>(length, numel - first);
        sum += projector.Of({DType::kFloat64, values.data() + first, count}, first);
      }
      EXPECT_NEAR(sum.value, whole.value, 1e-12 * std::sqrt(whole.squares))
          << numel << " in parts of " << length;
      EXPECT_NEAR(sum.squares, whole.squares, 1e-12 * whole.squares);
    }
  }
}

TEST(Projection, IsTheSameForEqualValuesOfAnyDType) {
  for (const std::size_t numel : kSizes) {
    std::vector<long double> values;
    for (const std::uint64_t bits : reference::ModeratePatterns(DType::kFloat16, numel, 5)) {
      // What bfloat16 holds too.
      const std::uint64_t coarse = reference::Convert(DType::kFloat16, bits, DType::kBFloat16);
      values.push_back(reference::Decode(DType::kBFloat16, coarse));
    }
    const Projection want = Project("w", Vector(values.begin(), values.end()));
    ASSERT_NE(want.value, 0);
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      std::vector<std::byte> bytes = reference::PackValues(dtype, values);
      const Projection got = Projector("w", numel).Of({dtype, bytes.data(), numel});
      EXPECT_EQ(got.value, want.value) << Name(dtype) << ", " << numel;
      EXPECT_EQ(got.squares, want.squares) << Name(dtype) << ", " << numel;
    }
  }
}

TEST(Projection, OfNothingIsZero) {
  const Projection none = Projector("w", 0).Of({DType::kFloat32, nullptr, 0});
  EXPECT_EQ(none.value, 0);
  EXPECT_EQ(none.squares, 0);
  EXPECT_TRUE(none.is_finite());
  const Projector projector("w", 3000);
  for (const std::size_t first : {0U, 1U, 64U, 1024U, 3000U}) {
    const Projection empty = projector.Of({DType::kFloat32, nullptr, 0}, first);
    EXPECT_EQ(empty.value, 0);
    EXPECT_EQ(empty.squares, 0);
  }
}

TEST(Projection, HasOtherSignsForOtherNamesAndBlocks) {
  const Vector ones(1024 * 40, 1);
  EXPECT_EQ(Project("layer1.weight", ones).value, Project("layer1.weight", ones).value);
  std::vector<double> seen;
  for (int i = 0; i < 50; ++i) {
    seen.push_back(Project("layer" + std::to_string(i) + ".weight", ones).value);
  }
  std::ranges::sort(seen);
  const auto repeated = std::ranges::unique(seen);
  EXPECT_GT(seen.size() - repeated.size(), 30U);
  // Equal blocks, one after the other: their sums would all be the same if the signs were.
  Vector values = ones;
  const Projector projector("w", values.size());
  std::vector<double> blocks;
  for (std::size_t first = 0; first < values.size(); first += 1024) {
    blocks.push_back(projector.Of({DType::kFloat64, values.data() + first, 64}, first).value);
  }
  EXPECT_LT(std::ranges::min(blocks), 0);
  EXPECT_GT(std::ranges::max(blocks), 0);
}

TEST(Projection, TellsWhatIsNotFinite) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    for (const std::size_t at : {0U, 63U, 1024U, 1087U, 2999U}) {
      Vector values = RandomVector(3000, 6);
      values[at] = bad;
      const bool is_read = at % 1024 < 64;
      EXPECT_EQ(Project("w", values).is_finite(), !is_read) << at;
      std::vector<std::byte> halves = reference::PackValues(
          DType::kFloat16, std::vector<long double>(values.begin(), values.end()));
      const Projector projector("w", 3000);
      EXPECT_EQ(projector.Of({DType::kFloat16, halves.data(), 3000}).is_finite(), !is_read) << at;
    }
  }
}

TEST(Projection, IsNotFiniteIfTheSquaresOverflow) {
  EXPECT_TRUE(Project("w", {1e150, 1}).is_finite());
  EXPECT_FALSE(Project("w", {1e160, 1}).is_finite());
}

TEST(Projection, ScalesWithAFactor) {
  const Projection one = Project("w", RandomVector(500, 7));
  const Projection scaled = one * -0.25;
  EXPECT_EQ(scaled.value, one.value * -0.25);
  EXPECT_EQ(scaled.squares, one.squares * 0.0625);
}

// The mean of value^2 / squares is 1: over vectors for given signs, and over signs for a vector
// whose elements add up as far as they can.
TEST(Projection, IsAboutAsLargeAsTheNorm) {
  constexpr int kVectors = 2000;
  for (const std::size_t numel : {1U, 63U, 64U, 65U, 1023U, 1024U, 1025U, 5000U}) {
    const Projector projector("w", numel);
    Vector ones(numel, 1);
    double over_vectors = 0;
    double over_norms = 0;
    double over_names = 0;
    for (int i = 0; i < kVectors; ++i) {
      Vector values = RandomVector(numel, static_cast<std::uint32_t>(i));
      double norm = 0;
      for (const double value : values) norm += value * value;
      const Projection a = projector.Of(View(values));
      over_vectors += a.value * a.value / a.squares / kVectors;
      over_norms += a.squares / norm / kVectors;
      const Projection b = Projector("layer" + std::to_string(i), numel).Of(View(ones));
      over_names += b.value * b.value / b.squares / kVectors;
    }
    EXPECT_NEAR(over_vectors, 1, 0.1) << numel;
    EXPECT_NEAR(over_norms, 1, 0.1) << numel;
    EXPECT_NEAR(over_names, 1, 0.1) << numel;
  }
}

}  // namespace
}  // namespace gradwire

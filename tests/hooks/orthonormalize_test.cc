#include "hooks/power_sgd/orthonormalize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "hooks/power_sgd/column_order.h"

namespace gradwire {
namespace {

using Matrix = std::vector<double>;

Matrix RandomMatrix(MatrixShape shape, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Matrix matrix(shape.numel());
  for (double& value : matrix) value = normal(random);
  return matrix;
}

// Orthonormalize for the row-major matrices of these tests.
bool OrthonormalizeRows(MatrixShape shape, double epsilon, Matrix& matrix) {
  Matrix columns(shape.numel());
  for (std::size_t r = 0; r < shape.rows; ++r) {
    for (std::size_t c = 0; c < shape.cols; ++c) {
      columns[c * shape.rows + r] = matrix[r * shape.cols + c];
    }
  }
  const bool finite = Orthonormalize(shape, epsilon, columns);
  for (std::size_t r = 0; r < shape.rows; ++r) {
    for (std::size_t c = 0; c < shape.cols; ++c) {
      matrix[r * shape.cols + c] = columns[c * shape.rows + r];
    }
  }
  return finite;
}

std::vector<long double> Column(MatrixShape shape, const Matrix& matrix, std::size_t col) {
  std::vector<long double> column(shape.rows);
  for (std::size_t i = 0; i < shape.rows; ++i) column[i] = matrix[i * shape.cols + col];
  return column;
}

void SetColumn(MatrixShape shape, Matrix& matrix, std::size_t col, const std::vector<double>& to) {
  for (std::size_t i = 0; i < shape.rows; ++i) matrix[i * shape.cols + col] = to[i];
}

void ScaleColumn(MatrixShape shape, Matrix& matrix, std::size_t col, double factor) {
  for (std::size_t i = 0; i < shape.rows; ++i) matrix[i * shape.cols + col] *= factor;
}

long double Dot(const std::vector<long double>& a, const std::vector<long double>& b) {
  long double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void ExpectOrthonormal(MatrixShape shape, const Matrix& matrix) {
  for (std::size_t a = 0; a < shape.cols; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      const long double dot = Dot(Column(shape, matrix, a), Column(shape, matrix, b));
      ASSERT_NEAR(static_cast<double>(dot), a == b ? 1.0 : 0.0, 1e-14)
          << shape.rows << "x" << shape.cols << ", columns " << a << " and " << b;
    }
  }
}

// Column `col` of `before` lies in the span of the first col + 1 columns of `after`, on the
// positive side of the last of them.
void ExpectColumnKept(MatrixShape shape, const Matrix& before, const Matrix& after,
                      std::size_t col) {
  std::vector<long double> rest = Column(shape, before, col);
  const long double norm = std::sqrt(Dot(rest, rest));
  for (std::size_t k = 0; k <= col; ++k) {
    const std::vector<long double> unit = Column(shape, after, k);
    const long double share = Dot(unit, rest);
    if (k == col) {
      EXPECT_GT(share, 0) << "column " << col;
    }
    for (std::size_t i = 0; i < shape.rows; ++i) rest[i] -= share * unit[i];
  }
  EXPECT_LT(std::sqrt(Dot(rest, rest)) / norm, 1e-14L) << "column " << col;
}

TEST(Orthonormalize, GivesOrthonormalColumnsOfTheSameSpanAndSign) {
  std::uint32_t seed = 1;
  for (const MatrixShape shape : {MatrixShape{1, 1},
                                  {2, 2},
                                  {3, 2},
                                  {17, 3},
                                  {64, 4},
                                  {16, 16},
                                  {100, 32},
                                  {2600, 4},
                                  {5, 5}}) {
    const Matrix before = RandomMatrix(shape, seed++);
    Matrix after = before;
    ASSERT_TRUE(OrthonormalizeRows(shape, 0, after));
    ExpectOrthonormal(shape, after);
    for (std::size_t col = 0; col < shape.cols; ++col) ExpectColumnKept(shape, before, after, col);
  }
}

TEST(Orthonormalize, TurnsAZeroMatrixIntoUnitVectors) {
  constexpr MatrixShape kShape{5, 3};
  Matrix matrix(kShape.numel(), 0.0);
  ASSERT_TRUE(OrthonormalizeRows(kShape, 0, matrix));
  EXPECT_EQ(matrix, (Matrix{1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}));
}

TEST(Orthonormalize, ReplacesACollinearColumnByTheFirstUnitVectorOutside) {
  constexpr MatrixShape kShape{4, 2};
  Matrix matrix = {3, -6, 0, 0, 0, 0, 0, 0};
  ASSERT_TRUE(OrthonormalizeRows(kShape, 0, matrix));
  EXPECT_EQ(matrix, (Matrix{1, 0, 0, 1, 0, 0, 0, 0}));
}

TEST(Orthonormalize, ReplacesAZeroColumnBetweenOthers) {
  constexpr MatrixShape kShape{6, 3};
  Matrix before = RandomMatrix(kShape, 7);
  SetColumn(kShape, before, 1, std::vector<double>(6, 0.0));
  Matrix after = before;
  ASSERT_TRUE(OrthonormalizeRows(kShape, 0, after));
  ExpectOrthonormal(kShape, after);
  ExpectColumnKept(kShape, before, after, 0);
  ExpectColumnKept(kShape, before, after, 2);
}

TEST(Orthonormalize, MakesNearlyCollinearColumnsOrthogonal) {
  constexpr MatrixShape kShape{50, 3};
  for (const double distance : {1e-3, 1e-6, 1e-9, 1e-12, 1e-15}) {
    Matrix matrix = RandomMatrix(kShape, 3);
    for (std::size_t i = 0; i < kShape.rows; ++i) {
      double* row = matrix.data() + i * kShape.cols;
      row[1] = row[0] + distance * row[1];
      row[2] = row[0] - row[1] + distance * distance * row[2];
    }
    ASSERT_TRUE(OrthonormalizeRows(kShape, 0, matrix));
    ExpectOrthonormal(kShape, matrix);
  }
}

TEST(Orthonormalize, KeepsAColumnJustAboveTheLimitAndReplacesOneJustBelow) {
  constexpr MatrixShape kShape{3, 2};
  Matrix above = {1, 1, 0, 0, 0, -1.1e-10};
  ASSERT_TRUE(OrthonormalizeRows(kShape, 0, above));
  EXPECT_EQ(above, (Matrix{1, 0, 0, 0, 0, -1}));
  Matrix below = {1, 1, 0, 0, 0, -0.9e-10};
  ASSERT_TRUE(OrthonormalizeRows(kShape, 0, below));
  EXPECT_EQ(below, (Matrix{1, 0, 0, 1, 0, 0}));
}

TEST(Orthonormalize, TakesColumnsOfAnyMagnitude) {
  constexpr MatrixShape kShape{40, 4};
  Matrix plain = RandomMatrix(kShape, 11);
  ASSERT_TRUE(OrthonormalizeRows(kShape, 0, plain));
  for (const double scale : {1e-200, 1e200, 0x1p-1000, 0x1p1020}) {
    Matrix matrix = RandomMatrix(kShape, 11);
    ScaleColumn(kShape, matrix, 1, scale);
    ScaleColumn(kShape, matrix, 2, 1 / scale);
    ASSERT_TRUE(OrthonormalizeRows(kShape, 0, matrix));
    ExpectOrthonormal(kShape, matrix);
    for (std::size_t i = 0; i < matrix.size(); ++i) ASSERT_NEAR(matrix[i], plain[i], 1e-14);
  }
}

TEST(Orthonormalize, TakesTheSmallestAndTheLargestNumbers) {
  constexpr double kTiny = std::numeric_limits<double>::denorm_min();
  constexpr double kHuge = std::numeric_limits<double>::max();
  constexpr MatrixShape kShape{3, 2};
  Matrix matrix = {kTiny, kHuge, kTiny, -kHuge, kTiny, kHuge};
  ASSERT_TRUE(OrthonormalizeRows(kShape, 0, matrix));
  ExpectOrthonormal(kShape, matrix);
  EXPECT_EQ(matrix[0], matrix[2]);
  EXPECT_EQ(matrix[1], matrix[5]);
}

TEST(Orthonormalize, FillsWithNanIfAnElementIsNotFinite) {
  constexpr MatrixShape kShape{7, 3};
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    for (const double epsilon : {0.0, 1e-8}) {
      for (std::size_t at = 0; at < kShape.numel(); ++at) {
        Matrix matrix = RandomMatrix(kShape, 5);
        matrix[at] = bad;
        EXPECT_FALSE(OrthonormalizeRows(kShape, epsilon, matrix));
        for (const double value : matrix) ASSERT_TRUE(std::isnan(value));
      }
    }
  }
}

TEST(Orthonormalize, CompletesASquareBasis) {
  for (std::size_t n = 1; n <= 40; ++n) {
    const MatrixShape shape{n, n};
    Matrix matrix(shape.numel(), 0.0);
    ASSERT_TRUE(OrthonormalizeRows(shape, 0, matrix));
    ExpectOrthonormal(shape, matrix);
    matrix = RandomMatrix(shape, static_cast<std::uint32_t>(n));
    SetColumn(shape, matrix, n - 1, std::vector<double>(n, 0.0));
    ASSERT_TRUE(OrthonormalizeRows(shape, 0, matrix));
    ExpectOrthonormal(shape, matrix);
  }
}

// The last unit vector lies within the other columns, and of none of the rest more than 0.38 is
// outside.
TEST(Orthonormalize, CompletesABasisThatLeavesLittleOfEveryUnitVector) {
  constexpr std::size_t kRows = 8;
  constexpr MatrixShape kShape{kRows, kRows};
  Matrix matrix(kShape.numel(), 0.0);
  matrix[(kRows - 1) * kRows] = 1;
  for (std::size_t col = 1; col + 1 < kRows; ++col) {
    matrix[(col - 1) * kRows + col] = 1;
    matrix[col * kRows + col] = -1;
  }
  ASSERT_TRUE(OrthonormalizeRows(kShape, 0, matrix));
  ExpectOrthonormal(kShape, matrix);
}

// torch's _orthogonalize_gram_schmidt, line by line, for a non-zero epsilon.
Matrix TorchGramSchmidt(MatrixShape shape, double epsilon, Matrix matrix) {
  for (std::size_t i = 0; i < shape.cols; ++i) {
    long double squares = 0;
    for (std::size_t r = 0; r < shape.rows; ++r) {
      squares += static_cast<long double>(matrix[r * shape.cols + i]) * matrix[r * shape.cols + i];
    }
    const double norm = static_cast<double>(std::sqrt(squares));
    for (std::size_t r = 0; r < shape.rows; ++r) matrix[r * shape.cols + i] /= norm + epsilon;
    for (std::size_t k = i + 1; k < shape.cols; ++k) {
      long double dot = 0;
      for (std::size_t r = 0; r < shape.rows; ++r) {
        dot += static_cast<long double>(matrix[r * shape.cols + i]) * matrix[r * shape.cols + k];
      }
      for (std::size_t r = 0; r < shape.rows; ++r) {
        matrix[r * shape.cols + k] -= static_cast<double>(dot) * matrix[r * shape.cols + i];
      }
    }
  }
  return matrix;
}

TEST(OrthonormalizeWithEpsilon, IsTorchsFormulaForOneAndTwoColumns) {
  for (const MatrixShape shape : {MatrixShape{1, 1}, {9, 1}, {9, 2}, {300, 2}, {2, 2}}) {
    for (const double epsilon : {1e-8, 1e-3, 0.5}) {
      const Matrix before = RandomMatrix(shape, 21);
      Matrix after = before;
      ASSERT_TRUE(OrthonormalizeRows(shape, epsilon, after));
      const Matrix expected = TorchGramSchmidt(shape, epsilon, before);
      for (std::size_t i = 0; i < after.size(); ++i) ASSERT_NEAR(after[i], expected[i], 1e-13);
    }
  }
}

TEST(OrthonormalizeWithEpsilon, LeavesAZeroColumnZero) {
  constexpr MatrixShape kShape{3, 2};
  Matrix matrix = {0, 2, 0, 0, 0, 0};
  ASSERT_TRUE(OrthonormalizeRows(kShape, 1e-8, matrix));
  EXPECT_EQ(matrix, (Matrix{0, 2 / (2 + 1e-8), 0, 0, 0, 0}));
}

TEST(OrthonormalizeWithEpsilon, IgnoresItForMoreColumns) {
  constexpr MatrixShape kShape{20, 3};
  Matrix plain = RandomMatrix(kShape, 4);
  Matrix with_epsilon = plain;
  ASSERT_TRUE(OrthonormalizeRows(kShape, 0, plain));
  ASSERT_TRUE(OrthonormalizeRows(kShape, 0.1, with_epsilon));
  EXPECT_EQ(plain, with_epsilon);
}

// With fewer and with more columns than VisitByColumn takes elements at once.
TEST(VisitByColumn, VisitsEachElementOnceAtItsPlace) {
  for (const MatrixShape shape : {MatrixShape{1, 1}, {7, 1}, {513, 1}, {300, 7}, {3, 700}}) {
    std::vector<std::size_t> places(shape.numel(), shape.numel());
    std::size_t visits = 0;
    VisitByColumn(shape, [&](std::size_t i, std::size_t at) {
      places[i] = at;
      ++visits;
    });
    EXPECT_EQ(visits, shape.numel());
    for (std::size_t i = 0; i < places.size(); ++i) {
      ASSERT_EQ(places[i], i % shape.cols * shape.rows + i / shape.cols);
    }
  }
}

}  // namespace
}  // namespace gradwire

#include "hooks/power_sgd/orthonormalize.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradwire {
namespace {

// A column whose norm falls below this part of its norm before projection consists of rounding
// errors only: it depends linearly on the columns before it.
constexpr double kDeficient = 1e-10;

class Columns {
 public:
  Columns(MatrixShape shape, std::span<double> matrix) : shape_(shape), matrix_(matrix) {}

  double& at(std::size_t row, std::size_t col) { return matrix_[col * shape_.rows + row]; }

  // Multiplies by a power of two, which is exact, so that products do not overflow or underflow.
  void ScaleToOne(std::size_t col) {
    const double largest = Largest(col);
    if (largest == 0) return;
    const int exponent = std::ilogb(largest);
    for (std::size_t i = 0; i < shape_.rows; ++i) at(i, col) = std::scalbn(at(i, col), -exponent);
  }

  // Scales by the largest element, as BLAS's nrm2 does, so that no square overflows or underflows.
  double Norm(std::size_t col) {
    const double largest = Largest(col);
    if (largest == 0) return 0;
    double sum = 0;
    for (std::size_t i = 0; i < shape_.rows; ++i) {
      const double scaled = at(i, col) / largest;
      sum += scaled * scaled;
    }
    return largest * std::sqrt(sum);
  }

  // col -= (unit . col) unit, for each column before `col`.
  void Project(std::size_t col) {
    for (std::size_t k = 0; k < col; ++k) Subtract(k, col);
  }

  void Subtract(std::size_t unit, std::size_t col) {
    double dot = 0;
    for (std::size_t i = 0; i < shape_.rows; ++i) dot += at(i, unit) * at(i, col);
    for (std::size_t i = 0; i < shape_.rows; ++i) at(i, col) -= dot * at(i, unit);
  }

  void Divide(std::size_t col, double divisor) {
    for (std::size_t i = 0; i < shape_.rows; ++i) at(i, col) /= divisor;
  }

  // A column that vanished becomes the projection of a unit vector. The choice depends only on the
  // columns before it, so that every run gives the same bits.
  void Replace(std::size_t col) {
    const std::size_t unit = UnitOutside(col);
    for (std::size_t i = 0; i < shape_.rows; ++i) at(i, col) = i == unit ? 1.0 : 0.0;
    Project(col);
    Project(col);
    Divide(col, Norm(col));
  }

 private:
  double Largest(std::size_t col) {
    double largest = 0;
    for (std::size_t i = 0; i < shape_.rows; ++i) largest = std::max(largest, std::abs(at(i, col)));
    return largest;
  }

  // Returns the first unit vector whose part outside the span of the columns before `col` has at
  // least half its norm (squared: 1/4). If the matrix is nearly square there may be none: then the
  // one with the largest part outside.
  std::size_t UnitOutside(std::size_t col) {
    std::size_t best = 0;
    double most = 0;
    for (std::size_t unit = 0; unit < shape_.rows; ++unit) {
      double outside = 1;  // squared
      for (std::size_t k = 0; k < col; ++k) outside -= at(unit, k) * at(unit, k);
      if (outside >= 0.25) return unit;
      if (outside > most) {
        most = outside;
        best = unit;
      }
    }
    return best;
  }

  const MatrixShape shape_;
  const std::span<double> matrix_;
};

}  // namespace

// Gram-Schmidt, column by column. One projection leaves an error of the order of eps * before /
// norm; a second one makes the columns orthogonal to working precision ("twice is enough",
// Giraud, Langou, Rozloznik 2005). The order of operations is fixed, so all machines get the same
// bits. With `epsilon`, for ranks 1 and 2, it is torch's formula: one projection, then division by
// norm + epsilon.
bool Orthonormalize(MatrixShape shape, double epsilon, std::span<double> matrix) {
  if (!std::all_of(matrix.begin(), matrix.end(), [](double v) { return std::isfinite(v); })) {
    std::fill(matrix.begin(), matrix.end(), std::numeric_limits<double>::quiet_NaN());
    return false;
  }
  Columns columns(shape, matrix);
  const bool torchs_form = epsilon > 0 && shape.cols <= 2;
  for (std::size_t col = 0; col < shape.cols; ++col) {
    if (torchs_form) {
      columns.Project(col);
      columns.Divide(col, columns.Norm(col) + epsilon);
      continue;
    }
    // The factor does not change the column's direction, but keeps products in range.
    columns.ScaleToOne(col);
    const double before = columns.Norm(col);
    columns.Project(col);
    columns.Project(col);
    const double norm = columns.Norm(col);
    if (before == 0 || norm < kDeficient * before) {
      columns.Replace(col);
    } else {
      columns.Divide(col, norm);
    }
  }
  return true;
}

}  // namespace gradwire

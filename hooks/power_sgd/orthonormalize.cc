#include "hooks/power_sgd/orthonormalize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "hooks/power_sgd/orthonormalize_order.h"

namespace gradwire {
namespace {

// Multiplies by 2^-exponent, in two steps, since that power itself may be out of range. Exact,
// unless the result is subnormal.
class Scale {
 public:
  explicit Scale(int exponent)
      : first_(std::ldexp(1.0, -exponent / 2)),
        second_(std::ldexp(1.0, -exponent - -exponent / 2)) {}
  double operator()(double v) const { return v * first_ * second_; }

 private:
  double first_;
  double second_;
};

// Adds value(row) for each row, in the order of orthonormalize_order.h.
template <class F>
double SumOfRows(std::size_t rows, F value) {
  std::array<double, kOrthonormalizeLanes> lanes;
  std::size_t live = std::min(rows, lanes.size());
  for (std::size_t lane = 0; lane < live; ++lane) lanes[lane] = value(lane);
  std::size_t first = live;
  for (; first + lanes.size() <= rows; first += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] += value(first + lane);
  }
  for (std::size_t lane = 0; first + lane < rows; ++lane) lanes[lane] += value(first + lane);
  for (std::size_t half = lanes.size() / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane + half < live && lane < half; ++lane) {
      lanes[lane] += lanes[lane + half];
    }
    live = std::min(live, half);
  }
  return lanes[0];
}

class Columns {
 public:
  Columns(MatrixShape shape, std::span<double> matrix) : shape_(shape), matrix_(matrix) {}

  double& at(std::size_t row, std::size_t col) { return matrix_[col * shape_.rows + row]; }

  // Keeps products in range.
  void ScaleToOne(std::size_t col) {
    const double largest = Largest(col);
    if (largest == 0) return;
    const Scale scale(std::ilogb(largest));
    for (std::size_t i = 0; i < shape_.rows; ++i) at(i, col) = scale(at(i, col));
  }

  // Scaled, so that no square overflows or underflows.
  double Norm(std::size_t col) {
    const double largest = Largest(col);
    if (largest == 0) return 0;
    const int exponent = std::ilogb(largest);
    const Scale scale(exponent);
    const double* values = &at(0, col);
    const double sum = SumOfRows(shape_.rows, [&](std::size_t row) {
      const double scaled = scale(values[row]);
      return scaled * scaled;
    });
    return std::scalbn(std::sqrt(sum), exponent);
  }

  // col -= (unit . col) unit, for each column before `col`.
  void Project(std::size_t col) {
    for (std::size_t k = 0; k < col; ++k) Subtract(k, col);
  }

  void Subtract(std::size_t unit, std::size_t col) {
    const double* from = &at(0, unit);
    double* to = &at(0, col);
    const double dot = SumOfRows(shape_.rows, [&](std::size_t row) { return from[row] * to[row]; });
    for (std::size_t i = 0; i < shape_.rows; ++i) to[i] -= dot * from[i];
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

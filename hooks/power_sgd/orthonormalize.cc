#include "hooks/power_sgd/orthonormalize.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradwire {
namespace {

constexpr double kDeficient = 1e-10;

class Columns {
 public:
  Columns(MatrixShape shape, std::span<double> matrix) : shape_(shape), matrix_(matrix) {}

  double& at(std::size_t row, std::size_t col) { return matrix_[row * shape_.cols + col]; }

  // Times a power of two, exactly, so that products neither overflow nor lose digits.
  void ScaleToOne(std::size_t col) {
    const double largest = Largest(col);
    if (largest == 0) return;
    const int exponent = std::ilogb(largest);
    for (std::size_t i = 0; i < shape_.rows; ++i) at(i, col) = std::scalbn(at(i, col), -exponent);
  }

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

  // The first unit vector with at least half its norm outside the columns before `col`. With nearly
  // as many columns as rows there may be none: then the one with most of it outside.
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

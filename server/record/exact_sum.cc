#include "server/record/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace gradwire::server {
namespace {

// Of a dtype: half a unit in the last place of 1, the largest number, and half the smallest.
struct Precision {
  double unit = 0;
  double largest = 0;
  double least = 0;
};

Precision PrecisionOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {0x1p-24, std::numeric_limits<float>::max(), 0x1p-150};
    case DType::kFloat64:
      return {0x1p-53, std::numeric_limits<double>::max(), 0};
    case DType::kFloat16:
      return {0x1p-11, 65504, 0x1p-25};
    case DType::kBFloat16:
      return {0x1p-8, 0x1.FEp127, 0x1p-134};
  }
  return {};
}

// Sums of 16-bit elements are added in fp32.
double AddingUnit(DType dtype) { return ByteSize(dtype) == 2 ? 0x1p-24 : 0x1p-53; }

template <class T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

double HalfValue(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double sign = bits >> 15 == 0 ? 1 : -1;
  if (exponent == 31) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

double Element(DType dtype, std::span<const std::byte> bytes, std::size_t index) {
  const std::byte* at = bytes.data() + index * ByteSize(dtype);
  switch (dtype) {
    case DType::kFloat32:
      return Load<float>(at);
    case DType::kFloat64:
      return Load<double>(at);
    case DType::kFloat16:
      return HalfValue(Load<std::uint16_t>(at));
    case DType::kBFloat16:
      return std::bit_cast<float>(std::uint32_t{Load<std::uint16_t>(at)} << 16);
  }
  return 0;
}

// What an element is to be, and how far the roundings may lead from it.
struct Exact {
  double value = 0;
  double tolerance = 0;
  bool may_overflow = false;  // an intermediate value may be infinite
};

Exact ExactSum(const RecordedReduction& reduction, std::size_t element) {
  const DType dtype = reduction.segment.dtype;
  const Precision precision = PrecisionOf(dtype);
  long double sum = 0;
  double magnitude = 0;
  double rounded = 0;  // by casts and quotients
  Exact exact;
  for (std::size_t i = 0; i < reduction.inputs.size(); ++i) {
    double value = 0;
    if (reduction.raw.raw(i)) {
      const double gradient = Element(reduction.raw.dtype, reduction.inputs[i], element);
      value = gradient / reduction.raw.divisor;
      rounded += 2 * (precision.unit * std::abs(value) + precision.least);
      // It is cast before it is divided.
      if (std::isfinite(gradient) && std::abs(gradient) >= precision.largest) {
        exact.may_overflow = true;
      }
    } else {
      value = Element(dtype, reduction.inputs[i], element);
    }
    sum += value;
    magnitude += std::abs(value);
  }
  const double count = static_cast<double>(reduction.inputs.size());
  const double added = 2 * count * AddingUnit(dtype) * magnitude;
  const double divisor = reduction.segment.op == ReduceOp::kMean ? reduction.weight : 1;
  exact.value = static_cast<double>(sum / static_cast<long double>(divisor));
  exact.tolerance =
      (rounded + added) / divisor + precision.unit * std::abs(exact.value) * 1.01 + precision.least;
  const double most = ByteSize(dtype) == 2 ? double{std::numeric_limits<float>::max()}
                                           : std::numeric_limits<double>::max();
  exact.may_overflow = exact.may_overflow || magnitude >= most / 2 ||
                       std::abs(exact.value) + exact.tolerance >= precision.largest;
  return exact;
}

bool Agrees(double result, const Exact& exact) {
  if (std::isnan(exact.value)) return std::isnan(result);
  if (std::isinf(exact.value))
    return result == exact.value || (std::isnan(result) && exact.may_overflow);
  if (!std::isfinite(result)) return exact.may_overflow;
  return std::abs(result - exact.value) <= exact.tolerance;
}

std::optional<WrongElement> FindInSum(const RecordedReduction& reduction,
                                      std::span<const std::byte> result) {
  for (std::size_t i = 0; i < reduction.segment.numel; ++i) {
    const Exact exact = ExactSum(reduction, i);
    const double found = Element(reduction.segment.dtype, result, i);
    if (!Agrees(found, exact)) {
      return WrongElement{
          .element = i, .result = found, .exact = exact.value, .tolerance = exact.tolerance};
    }
  }
  return std::nullopt;
}

using Column = std::vector<long double>;

long double Dot(const Column& a, const Column& b) {
  long double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void Subtract(const Column& unit, Column& column) {
  const long double dot = Dot(unit, column);
  for (std::size_t i = 0; i < column.size(); ++i) column[i] -= dot * unit[i];
}

// A matrix of a sum, its columns made orthonormal one after the other.
class ExactMatrix {
 public:
  ExactMatrix(const RecordedReduction& reduction, MatrixShape shape, std::size_t first)
      : epsilon_(shape.cols <= 2 ? reduction.segment.epsilon : 0), columns_(shape.cols) {
    for (std::size_t c = 0; c < shape.cols; ++c) {
      columns_[c].resize(shape.rows);
      for (std::size_t r = 0; r < shape.rows; ++r) {
        for (const std::span<const std::byte>& input : reduction.inputs) {
          columns_[c][r] += Element(reduction.segment.dtype, input, first + r * shape.cols + c);
        }
      }
    }
  }

  const Column& column(std::size_t index) const { return columns_[index]; }

  // Returns by how much rounding of the sum counts in the column; infinity: it decides.
  double Orthonormalize(std::size_t index) {
    constexpr double kDecides = 1e9;
    Column& column = columns_[index];
    const long double before = std::sqrt(Dot(column, column));
    // torch's formula, which is used with an epsilon, subtracts once.
    for (int pass = 0; pass < (epsilon_ > 0 ? 1 : 2); ++pass) {
      for (std::size_t k = 0; k < index; ++k) Subtract(columns_[k], column);
    }
    const long double norm = std::sqrt(Dot(column, column));
    if (!(norm > 0) || !std::isfinite(norm)) return std::numeric_limits<double>::infinity();
    growth_ *= std::max(1.0, static_cast<double>(before / norm));
    if (growth_ > kDecides) return std::numeric_limits<double>::infinity();
    for (long double& value : column) value /= norm + epsilon_;
    return growth_;
  }

 private:
  const double epsilon_;
  double growth_ = 1;
  std::vector<Column> columns_;
};

std::optional<WrongElement> FindInMatrix(const RecordedReduction& reduction, MatrixShape shape,
                                         std::size_t first, std::span<const std::byte> result) {
  const DType dtype = reduction.segment.dtype;
  const Precision precision = PrecisionOf(dtype);
  ExactMatrix exact(reduction, shape, first);
  for (std::size_t c = 0; c < shape.cols; ++c) {
    const double growth = exact.Orthonormalize(c);
    if (std::isinf(growth)) return std::nullopt;
    // Of dot products and of the sum: a few roundings for each row and contribution.
    const double terms = static_cast<double>(shape.rows + reduction.inputs.size());
    const double computed = 16 * terms * growth * 0x1p-53;
    for (std::size_t r = 0; r < shape.rows; ++r) {
      const std::size_t at = first + r * shape.cols + c;
      const double value = static_cast<double>(exact.column(c)[r]);
      const double found = Element(dtype, result, at);
      const double tolerance = precision.unit * std::abs(value) * 1.01 + precision.least + computed;
      if (!(std::abs(found - value) <= tolerance)) {
        return WrongElement{.element = at, .result = found, .exact = value, .tolerance = tolerance};
      }
    }
  }
  return std::nullopt;
}

bool AllFinite(const RecordedReduction& reduction, std::size_t first, std::size_t numel) {
  for (std::size_t i = first; i < first + numel; ++i) {
    for (const std::span<const std::byte>& input : reduction.inputs) {
      if (!std::isfinite(Element(reduction.segment.dtype, input, i))) return false;
    }
  }
  return true;
}

}  // namespace

std::optional<WrongElement> FindWrongElement(const RecordedReduction& reduction,
                                             std::span<const std::byte> result) {
  const Segment& segment = reduction.segment;
  if (segment.op != ReduceOp::kOrthonormalizedSum) return FindInSum(reduction, result);
  std::size_t first = 0;
  for (const MatrixShape& shape : segment.matrices) {
    const std::size_t numel = shape.numel();
    if (AllFinite(reduction, first, numel)) {
      if (auto wrong = FindInMatrix(reduction, shape, first, result)) return wrong;
    } else if (const double found = Element(segment.dtype, result, first); !std::isnan(found)) {
      return WrongElement{.element = first,
                          .result = found,
                          .exact = std::numeric_limits<double>::quiet_NaN(),
                          .tolerance = 0};
    }
    first += numel;
  }
  return std::nullopt;
}

}  // namespace gradwire::server

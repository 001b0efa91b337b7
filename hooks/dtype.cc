#include "gradwire/hooks/dtype.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire {
namespace {

constexpr std::array kDTypes = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                DType::kBFloat16};

}  // namespace

std::size_t ByteSize(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat64:
      return 8;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
  }
  return 0;
}

std::string Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
  }
  return absl::StrCat("dtype ", static_cast<int>(dtype));
}

bool IsDType(int value) {
  for (const DType dtype : kDTypes) {
    if (value == static_cast<int>(dtype)) return true;
  }
  return false;
}

absl::StatusOr<DType> ParseDType(const std::string& name) {
  for (const DType dtype : kDTypes) {
    if (name == Name(dtype)) return dtype;
  }
  return Coded(ErrorCode::kParameter,
               absl::InvalidArgumentError(absl::StrCat(
                   "dtype: \"", name, "\" is not known; allowed: \"float32\", \"float64\", ",
                   "\"float16\", \"bfloat16\"")));
}

}  // namespace gradwire

// Element types of gradients and of the wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace gradwire {

// Values equal those of gradwire.v1.DataType (a test compares them).
enum class DType : std::uint8_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,   // IEEE 754 binary16
  kBFloat16 = 4,  // the upper half of binary32
};

// Bytes of one element. `dtype` must be one of the enumerators.
std::size_t ByteSize(DType dtype);

// "float32", "float64", "float16", "bfloat16": torch's names.
std::string Name(DType dtype);

// Whether `value` is one of the enumerators. For values from outside.
bool IsDType(int value);

// The inverse of Name. Returns InvalidArgument with the value and the four allowed names.
absl::StatusOr<DType> ParseDType(const std::string& name);

}  // namespace gradwire

// Which seeds a simulation's test runs.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"

namespace gradwire::sim {

inline std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  std::uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

}  // namespace gradwire::sim

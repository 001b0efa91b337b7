// The one form of "this value is not allowed".
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gradwire::wire {

template <class T>
absl::Status NotAllowed(const std::string& field, const T& value, const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, "; allowed: ", allowed));
}

// low <= value <= high.
template <class T>
absl::Status CheckRange(const std::string& field, T value, T low, T high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return NotAllowed(field, value, absl::StrCat(low, " to ", high));
}

template <class T>
absl::Status CheckCount(const std::string& field, T count, T low, T high) {
  if (count >= low && count <= high) return absl::OkStatus();
  return NotAllowed(field, absl::StrCat("has ", count, " entries"),
                    absl::StrCat(low, " to ", high));
}

}  // namespace gradwire::wire

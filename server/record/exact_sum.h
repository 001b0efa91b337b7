// Whether a reduction's result is right, by a computation of its own: plain loops in double
// precision, which share nothing with hooks/reduce.h but the definition of what is to be computed.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "server/record/step_record.h"

namespace gradwire::server {

// An element of a result that cannot be what its contributions give.
struct WrongElement {
  std::size_t element = 0;  // of the reduction
  double result = 0;
  double exact = 0;
  double tolerance = 0;
};

// The first element of `result`, in the reduction's dtype, that differs from the exact one by more
// than the roundings that the definition allows; nullopt: there is none. Where a column of a matrix
// is almost a combination of those before it, rounding decides what is left of it: that column and
// the later ones are not judged.
std::optional<WrongElement> FindWrongElement(const RecordedReduction& reduction,
                                             std::span<const std::byte> result);

}  // namespace gradwire::server

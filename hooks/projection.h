// Random projections of gradients: a number for each tensor that depends on it linearly and changes
// by about the norm of whatever is added to it.
//
// For each parameter signs s_j = ±1 are drawn once, from its name. Of its elements only each
// sixteenth block of 64 is read, beginning with the first, so that this costs a sixteenth of a
// pass: the projection is sqrt(numel / read) * sum of s_j x_j over these, and the squared norm
// numel / read * sum of x_j^2. Both are estimates of what all elements would give, except that
// equal tensors have equal ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gradwire/hooks/grad_bucket.h"

namespace gradwire {

struct Projection {
  double value = 0;
  double squares = 0;  // the squared norm
  bool is_finite() const;
  Projection& operator+=(const Projection& other);
  Projection operator*(double factor) const {
    return {.value = value * factor, .squares = squares * factor * factor};
  }
};

class Projector {
 public:
  // For a parameter with this name and so many elements.
  Projector(const std::string& name, std::size_t numel);

  // Of the parameter's elements from `first` on, in the processor's memory; the others count as 0.
  // `part` has no more elements than there are from `first` on.
  Projection Of(const TensorView& part, std::size_t first = 0) const;

 private:
  std::size_t numel_;
  std::uint64_t seed_;
  double scale_;  // of squares
};

}  // namespace gradwire

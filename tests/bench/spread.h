// The median of repeated measurements and how far they lie apart.
#pragma once

#include <algorithm>
#include <vector>

namespace gradwire::bench {

struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

// At least one value.
inline Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

}  // namespace gradwire::bench

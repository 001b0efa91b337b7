// Contributions that a reduction takes before a hook has encoded them.
#pragma once

#include <cstddef>
#include <vector>

#include "gradwire/hooks/dtype.h"

namespace gradwire {

// Contributions that are gradients as they are, not as the wire has them: each is cast to the
// reduction's dtype and divided, exactly as ConvertAndDivide does it, before it is added.
struct RawContributions {
  DType dtype = DType::kFloat32;
  double divisor = 1;
  std::vector<bool> is_raw{};  // by contribution; empty: none is

  bool raw(std::size_t index) const { return index < is_raw.size() && is_raw[index]; }
};

}  // namespace gradwire

// Which contributions of a reduction have values that are not finite.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "gradwire/hooks/dtype.h"
#include "hooks/pieces.h"
#include "hooks/raw_contributions.h"

namespace gradwire {

// One contribution's values that are not finite, as the reduction adds them: a raw gradient that is
// too large for the reduction's dtype counts as infinite.
struct NonFinite {
  std::size_t contribution = 0;  // its index, which is in rank order
  std::size_t element = 0;       // the first one, counted in the reduction
  std::size_t nans = 0;
  std::size_t infinities = 0;

  friend bool operator==(const NonFinite&, const NonFinite&) = default;
};

// In the order of `contribution`, and only those that have such values. Empty though a result is
// not finite: finite values, whose sum is too large.
using NonFiniteSources = std::vector<NonFinite>;

// Adds what contribution `index` has in elements [begin, begin + numel), which lie at `values` in
// `dtype`. For one `index`, calls come with growing `begin`.
void NoteNonFinite(std::size_t index, std::size_t begin, DType dtype, const void* values,
                   std::size_t numel, NonFiniteSources& sources);

// Of whole contributions, each of exactly `numel` elements (the caller has checked), before
// anything overwrites them.
NonFiniteSources FindNonFinite(DType dtype, std::size_t numel,
                               std::span<const Pieces> contributions,
                               const RawContributions& raw = {});

}  // namespace gradwire

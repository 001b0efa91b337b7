// When a row of the ledger closes.
#pragma once

#include <algorithm>
#include <cmath>

#include "hooks/ledger_row.h"

namespace gradwire {

// The largest balance that rounding explains, where so many members contributed. `tolerance`: of
// what hooks and the wire round (server/core/ledger_tolerance.h); sums of projections are rounded,
// too.
inline double LargestBalance(const LedgerRow& row, double tolerance, int members) {
  constexpr double kSums = 1e-12;
  return tolerance * std::sqrt(std::max(members, 1) * row.rounded_squares) +
         kSums * std::sqrt(row.contributed_squares);
}

inline bool RowCloses(const LedgerRow& row, double tolerance, int members) {
  return std::abs(row.balance()) <= LargestBalance(row, tolerance, members);
}

}  // namespace gradwire

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

// What subtracting sums of squares leaves where nothing is left, as a part of what was rounded.
inline constexpr double kLedgerNoise = 1e-9;

// The squared norm of residuals that became lost from `before` on. Squares do not cancel where
// residuals go from member to member, but their projections do: without a loss these are 0.
inline double LostSquares(const LedgerRow& row, const LedgerRow& before = {}) {
  const double change = row.lost - before.lost;
  const bool is_noise = change * change <= kLedgerNoise * row.rounded_squares;
  return is_noise ? 0 : std::max(row.lost_squares - before.lost_squares, 0.0);
}

}  // namespace gradwire

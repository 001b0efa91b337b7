// A row of the ledger: what became of the gradients of one parameter, or of some that follow each
// other in the manifest.
//
//   contributed = applied + residual + skipped + dropped + lost, up to rounding
//
// in the sum over all members that there ever were. The first six are random projections of the
// sums over steps, x -> sum of s_j x_j with fixed signs s_j (hooks/ledger_hook.h), which are
// linear: a difference of vectors shows in them with about its norm. The others are sums of squared
// norms.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace gradwire {

// The rows that a model gets at most. One with more parameters has several in a row.
inline constexpr std::size_t kMostLedgerRows = 256;

inline std::size_t LedgerRowsOf(std::size_t parameters) {
  return std::min(parameters, kMostLedgerRows);
}
// Of a parameter, by its position in the manifest.
inline std::size_t LedgerRowOf(std::size_t parameter, std::size_t parameters) {
  return parameter * LedgerRowsOf(parameters) / parameters;
}

struct LedgerRow {
  double contributed = 0;  // gradients that hooks were given
  double applied = 0;      // means, one for each member
  double residual = 0;     // that hooks hold now
  double skipped = 0;      // gradients of steps that were skipped
  double dropped = 0;      // of steps that were dropped with a lost daemon or member
  double lost = 0;         // residuals of members that are gone
  double contributed_squares = 0;
  double residual_squares = 0;
  double skipped_squares = 0;
  double dropped_squares = 0;
  double lost_squares = 0;
  double rounded_squares =
      0;  // of all that was rounded: gradients, means and residuals of each step

  bool operator==(const LedgerRow&) const = default;

  // Calls function(this row's value, the other's) for each of them.
  template <class Function>
  void ForEach(const LedgerRow& other, Function function) {
    function(contributed, other.contributed);
    function(applied, other.applied);
    function(residual, other.residual);
    function(skipped, other.skipped);
    function(dropped, other.dropped);
    function(lost, other.lost);
    function(contributed_squares, other.contributed_squares);
    function(residual_squares, other.residual_squares);
    function(skipped_squares, other.skipped_squares);
    function(dropped_squares, other.dropped_squares);
    function(lost_squares, other.lost_squares);
    function(rounded_squares, other.rounded_squares);
  }
  LedgerRow& operator+=(const LedgerRow& other) {
    ForEach(other, [](double& value, double more) { value += more; });
    return *this;
  }
  LedgerRow& operator-=(const LedgerRow& other) {
    ForEach(other, [](double& value, double less) { value -= less; });
    return *this;
  }
  bool is_finite() const {
    bool finite = true;
    LedgerRow copy = *this;
    copy.ForEach(*this, [&](double& value, double) { finite = finite && std::isfinite(value); });
    return finite;
  }
  // What is not accounted for.
  double balance() const { return contributed - applied - residual - skipped - dropped - lost; }
};

}  // namespace gradwire

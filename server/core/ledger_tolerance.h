// How far a row of a session's ledger may be from 0.
#pragma once

#include <string>

#include "server/core/session_options.h"

namespace gradwire::server {

struct LedgerTolerance {
  // Of balance() / sqrt(members * rounded_squares). Rounding errors are independent of each other,
  // with a relative size of at most half a unit in the last place of the coarsest dtype whose
  // rounding nobody keeps: the norm of their sum is about that times the root of the sum of
  // squares.
  double of_balance = 0;
  // A sentence, if the hook loses more than that, and its ledger does not close.
  std::string loses{};
};

LedgerTolerance LedgerToleranceOf(const SessionOptions& options);

}  // namespace gradwire::server

// What a session knows about its steps beyond their results: why steps were skipped, whether
// members' parameters have drifted apart, and what became of all gradients.
#pragma once

#include "server/core/ledger.h"
#include "server/core/parameter_drift.h"
#include "server/core/skip_blame.h"

namespace gradwire::server {

struct StepRecords {
  SkipBlame blame;  // of the open step
  ParameterDrift drift{};
  Ledger ledger;
};

}  // namespace gradwire::server

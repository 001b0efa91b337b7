// What a session knows about its steps beyond their results: whether members' parameters have
// drifted apart, and what became of all gradients.
#pragma once

#include "server/core/ledger.h"
#include "server/core/parameter_drift.h"

namespace gradwire::server {

struct StepRecords {
  ParameterDrift drift{};
  Ledger ledger;
};

}  // namespace gradwire::server

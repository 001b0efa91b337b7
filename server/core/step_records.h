// What a session knows about its steps beyond their results: whether members' parameters have
// drifted apart, what became of all gradients, and who is late with them.
#pragma once

#include "server/core/late_members.h"
#include "server/core/ledger.h"
#include "server/core/parameter_drift.h"

namespace gradwire::server {

struct StepRecords {
  ParameterDrift drift{};
  Ledger ledger;
  LateMembers late;
};

}  // namespace gradwire::server

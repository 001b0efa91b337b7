// How `gradwirectl session ledger` shows what became of a session's gradients. Pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "gradwire/v1/admin.pb.h"

namespace gradwire::ctl {

// The sum of what the session's daemons say. FailedPrecondition: it has no ledger, or nothing is in
// it yet; the message says why.
absl::StatusOr<v1::LedgerStatus> LedgerOf(const v1::SessionStatus& session);

// Whether each row closes: what was contributed has been applied, is still a residual, or was lost
// by name, up to rounding.
bool Closes(const v1::LedgerStatus& ledger);

// A line for each row, the sum of all, and whether the ledger closes.
std::string LedgerTable(const v1::SessionStatus& session, const v1::LedgerStatus& ledger);
std::string LedgerJson(const v1::LedgerStatus& ledger);

}  // namespace gradwire::ctl

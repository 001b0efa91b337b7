// The frames of the ledger, to and from protobuf, for proto_conversion.h and the admin service.
#pragma once

#include "gradwire/v1/aggregation.pb.h"
#include "proto/wire/field_checker.h"
#include "proto/wire/frame.h"

namespace gradwire::wire {

void Set(const LedgerRow& row, v1::LedgerRow& message);
LedgerRow Get(const v1::LedgerRow& message);

void Set(const LedgerAccount& account, v1::Header& out);
LedgerAccount Get(const v1::LedgerAccount& message, Checker& check);

void Set(const LedgerTotal& total, v1::Header& out);
LedgerTotal Get(const v1::LedgerTotal& message, Checker& check);

}  // namespace gradwire::wire

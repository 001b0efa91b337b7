// What outlives a daemon, to and from protobuf: for proto_conversion.h, and for joins.
#pragma once

#include "absl/status/statusor.h"
#include "gradwire/v1/aggregation.pb.h"
#include "proto/wire/field_checker.h"
#include "proto/wire/frame.h"
#include "proto/wire/member_report.h"

namespace gradwire::wire {

void Set(const Recovery& recovery, v1::Recovery& message);
Recovery Get(const v1::Recovery& message, Checker& check);

void Set(const MembershipChange& change, v1::MembershipChange& message);
MembershipChange Get(const v1::MembershipChange& message, Checker& check);

void Set(const Heartbeat& heartbeat, v1::Header& out);
Heartbeat Get(const v1::Heartbeat& message, Checker& check);

void Set(const CoordinatorState& state, v1::Header& out);
CoordinatorState Get(const v1::CoordinatorState& message, Checker& check);
void Set(const StateRequest& request, v1::Header& out);
StateRequest Get(const v1::StateRequest& message, Checker& check);
void Set(const StateCopy& copy, v1::Header& out);
StateCopy Get(const v1::StateCopy& message, Checker& check);

v1::MemberReport ToProto(const MemberReport& report);
// InvalidArgument: the first field that is not allowed.
absl::StatusOr<MemberReport> FromProto(const v1::MemberReport& message);

}  // namespace gradwire::wire

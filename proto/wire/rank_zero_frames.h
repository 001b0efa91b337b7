// The frames that only rank 0 sends, to and from protobuf, for proto_conversion.h.
#pragma once

#include "gradwire/v1/aggregation.pb.h"
#include "proto/wire/field_checker.h"
#include "proto/wire/frame.h"

namespace gradwire::wire {

void Set(const BucketReport& report, v1::Header& out);
BucketReport Get(const v1::BucketReport& message, Checker& check);

void Set(const DrawPlan& plan, v1::Header& out);
DrawPlan Get(const v1::DrawPlan& message, Checker& check);

}  // namespace gradwire::wire

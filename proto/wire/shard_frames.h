// The frames of sessions with several shards, to and from protobuf, for proto_conversion.h.
#pragma once

#include "gradwire/v1/aggregation.pb.h"
#include "proto/wire/field_checker.h"
#include "proto/wire/frame.h"

namespace gradwire::wire {

void Set(const Prepared& prepared, v1::Header& out);
Prepared Get(const v1::Prepared& message, Checker& check);

void Set(const Ready& ready, v1::Header& out);
Ready Get(const v1::Ready& message, Checker& check);

void Set(const Concluded& concluded, v1::Header& out);
Concluded Get(const v1::Concluded& message, Checker& check);

// Also of StepDone.
Verdict GetVerdict(v1::StepVerdict verdict, Checker& check);

}  // namespace gradwire::wire

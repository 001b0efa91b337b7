// The frames of a step's beginning and end, most of them of sessions with several shards, to and
// from protobuf, for proto_conversion.h.
#pragma once

#include <string>

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

void Set(const GatherAgain& again, v1::Header& out);
GatherAgain Get(const v1::GatherAgain& message, Checker& check);

void Set(const ParameterDigest& digest, v1::Header& out);
ParameterDigest Get(const v1::ParameterDigest& message, Checker& check);

// Also of StepDone.
Verdict GetVerdict(v1::StepVerdict verdict, Checker& check);

// A sentence of at most kMaxMessageBytes. A string field must be UTF-8, or the receiver refuses the
// frame: the cut is between characters. An error's code at the end stays.
std::string Shortened(const std::string& text);

}  // namespace gradwire::wire

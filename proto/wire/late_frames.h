// Of members that leave, or are late, to and from protobuf: for proto_conversion.h.
#pragma once

#include "gradwire/v1/aggregation.pb.h"
#include "proto/wire/field_checker.h"
#include "proto/wire/frame.h"

namespace gradwire::wire {

void Set(const HandOver& hand_over, v1::Header& out);
HandOver Get(const v1::HandOver& message, Checker& check);

void Set(const HandOverAnswer& answer, v1::Header& out);
HandOverAnswer Get(const v1::HandOverAnswer& message, Checker& check);

void Set(const Missed& missed, v1::Header& out);
Missed Get(const v1::Missed& message, Checker& check);

}  // namespace gradwire::wire

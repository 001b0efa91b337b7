// The frames of node groups to and from protobuf, for proto_conversion.h.
#pragma once

#include "gradwire/v1/aggregation.pb.h"
#include "proto/wire/field_checker.h"
#include "proto/wire/frame.h"

namespace gradwire::wire {

void Set(const GroupBucket& bucket, v1::Header& out);
GroupBucket Get(const v1::GroupBucket& message, Checker& check);

void Set(const GroupId& id, v1::Header& out);
GroupId Get(const v1::GroupId& message, Checker& check);

void Set(const GroupOrder& order, v1::Header& out);
GroupOrder Get(const v1::GroupOrder& message, Checker& check);

void Set(const NodeGroup& group, v1::NodeGroup* out);
NodeGroup Get(const v1::NodeGroup& message, Checker& check);

}  // namespace gradwire::wire

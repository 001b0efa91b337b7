// What a member of a session with several shards reports after it has lost one of them. The shards
// are one daemon's parts: all are left together, and shard 0 decides for all.
#pragma once

#include <optional>
#include <span>

#include "proto/wire/member_report.h"

namespace gradwire::client {

// To shard 0: what the member holds at all shards. `reports`: of its cores, by shard, none of which
// has a daemon any more; at least one.
wire::MemberReport ReportOfAll(std::span<const wire::MemberReport> reports);

// To another shard, once shard 0 has begun the next life of the session: what became of the step is
// decided. `own`: of this shard's core; `roster`: that shard 0 has begun it with.
wire::MemberReport ReportToFollow(wire::MemberReport own, std::optional<wire::Roster> roster);

}  // namespace gradwire::client

// What the daemons of one session say of it, as one status, and how it is shown. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "gradwire/v1/admin.pb.h"

namespace gradwire::ctl {

// One or more statuses of one session, from different shards of it; the result has them as `parts`.
// Bytes are the sum. A time is the longest, because all daemons work at once; of a member's state,
// what is not "connected" counts. What the session waits for is said by a shard that the others
// wait for. All else is what the first shard says.
v1::SessionStatus MergeShards(std::vector<v1::SessionStatus> parts);

// The lists of several daemons as one. Sessions of one name, with the same daemons, become one, the
// latest of each daemon with the latest of the others; others stay what they are.
v1::ListSessionsResponse MergeSessions(const std::vector<v1::ListSessionsResponse>& lists);

// "shard 2 (c:29610) is the slowest: the others waited 12.3 ms a step for it". Empty if none stands
// out.
std::string SlowestShard(const v1::SessionStatus& merged);

// Of a session over several daemons: which were not asked. Empty: all were, or there is one.
std::string OtherShards(const v1::SessionStatus& session);

// A line for each daemon, and an empty one. Empty if there is one.
std::string ShardTable(const v1::SessionStatus& session);

}  // namespace gradwire::ctl

// The members of one session as threads of the test.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/client.h"

namespace gradwire::testing {

// Joins `options.world_size` members with ranks 0, 1, … and runs `member` on each, in a thread of
// its own. Returns by rank what Join or `member` returned; an exception comes as Internal.
// `adjust` may change what one of them joins with.
std::vector<absl::Status> RunRanks(
    const ClientOptions& options, const std::function<absl::Status(Client&, int rank)>& member,
    const std::function<void(ClientOptions& options, int rank)>& adjust = {});

// Fails the test for each status that is not ok.
void ExpectAllOk(const std::vector<absl::Status>& statuses);

// Waits up to ten seconds, or `timeout`, until `condition` holds.
bool Eventually(const std::function<bool()>& condition, absl::Duration timeout = absl::Seconds(10));

}  // namespace gradwire::testing

// Whether a member may announce these rounds for a bucket.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "hooks/coordinator_hook.h"
#include "proto/wire/frame.h"
#include "server/core/session_options.h"

namespace gradwire::server {

// The announced parameters are in the manifest. With a hook that the coordinator knows, the rounds
// are the hook's; a user's own (`hook` is null) may announce any within its limits, which bound
// what the session holds and computes.
absl::Status CheckPlan(const wire::Announce& announce, CoordinatorHook* hook,
                       const SessionOptions& options);

// "{40 float32 sum;}", for messages.
std::string PlanText(std::span<const RoundPlan> plans);

}  // namespace gradwire::server

// The members that a running session waits for too long.
#pragma once

#include "absl/time/time.h"
#include "server/core/failure_policy.h"

namespace gradwire::server {

class CollectiveFlow;
class Step;
struct SessionOptions;

// A lost member, or a step or collective that takes longer than options.step_timeout, pauses not
// counted. A lost member
// comes first: its name says more than what the others wait for.
MaybeFailure FindTimeout(const SessionOptions& options, const Membership& membership,
                         const Step& step, const CollectiveFlow& collectives, absl::Time now);

}  // namespace gradwire::server

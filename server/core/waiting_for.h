// What a running session waits for, in one sentence that names the members.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace gradwire::server {

class CollectiveFlow;
class Membership;
class Step;

// The open collective, or else the step.
std::string WaitingFor(const Step& step, const CollectiveFlow& collectives,
                       const Membership& membership, absl::Time now);

}  // namespace gradwire::server

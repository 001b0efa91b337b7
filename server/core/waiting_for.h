// What a running step waits for, in one sentence that names the members.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace gradwire::server {

class Membership;
class Step;

std::string WaitingFor(const Step& step, const Membership& membership, absl::Time now);

}  // namespace gradwire::server

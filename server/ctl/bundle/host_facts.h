// What this host is, for a bug report.
#pragma once

#include <string>

namespace gradwire::ctl {

// Kernel, processor and its vector instructions, memory, and the limits of this process and of its
// control groups, a line each. What cannot be read is left out.
std::string HostFacts();

// The variables whose names begin with GRADWIRE_, sorted, a line each. Of GRADWIRE_TOKEN, and of
// every other one that is named like a secret and has no path as its value, only that it is set.
std::string EnvironmentFacts();

// The value of GRADWIRE_TOKEN, to keep it out of what is shown; empty: there is none.
std::string EnvironmentToken();

}  // namespace gradwire::ctl

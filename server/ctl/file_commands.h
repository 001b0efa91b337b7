// The commands that write a file, or read one. Each returns the exit code.
#pragma once

#include "server/ctl/command_line.h"

namespace gradwire::ctl {

// A session's state.
int Export(const Flags& flags);
int Import(const Flags& flags);

// The next steps of a session.
int TraceSteps(const Flags& flags);

// For a bug report.
int WriteBundle(const Flags& flags);

}  // namespace gradwire::ctl

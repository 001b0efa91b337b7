// The commands that show what a session can prove of its steps: `session ledger` and `session
// digest`. Each returns the exit code.
#pragma once

#include "server/ctl/command_line.h"

namespace gradwire::ctl {

// What became of all gradients.
int ShowLedger(const Flags& flags);

// The steps' digests, or how they compare with another run's.
int ShowDigests(const Flags& flags);

}  // namespace gradwire::ctl

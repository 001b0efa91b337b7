// `gradwirectl replay`: computes recorded steps again, or compares two recordings. Asks no daemon.
#pragma once

#include <string>
#include <vector>

#include "server/ctl/report.h"

namespace gradwire::ctl {

struct ReplayFlags {
  std::vector<std::string> paths = {};  // files, and directories that have some
  std::string compare = {};             // a directory; empty: steps are computed again
};

// Prints to standard output, as lines or, if `print` is there, with it; what is wrong with a file
// goes to standard error. Returns the exit code: 0 if all steps are as recorded, or both recordings
// have the same.
int RunReplay(const ReplayFlags& flags, const Print& print);

}  // namespace gradwire::ctl

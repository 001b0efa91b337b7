// How gradwirectl says that it failed. Each returns the exit code.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/ctl/several.h"

namespace gradwire::ctl {

// What this machine refused, for example to write a file.
int FailedHere(const absl::Status& status);

// What a daemon answered, or that it did not.
int Failed(const std::string& address, const absl::Status& status);

// Says what each of them answered instead. Returns the last one's exit code; `otherwise` if there
// is none.
int AllFailed(const std::vector<Failure>& failures, int otherwise = 0);

}  // namespace gradwire::ctl

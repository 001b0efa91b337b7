// The files that the configuration names: certificates, tokens, the audit log.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/daemon/options.h"

namespace gradwire::server {

// What a start would refuse about these files, as of `now`: for each of them its first error, which
// names the setting and the path. Empty: nothing. Reads the files, and creates and changes nothing.
std::vector<absl::Status> CheckNamedFiles(const ServerOptions& options, absl::Time now);

}  // namespace gradwire::server

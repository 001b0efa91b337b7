// What SIGHUP does.
#pragma once

#include "server/daemon/configuration.h"
#include "server/daemon/server.h"

namespace gradwire::server {

// Reads the configuration again and applies what changed and can: `running` then has the new
// values and their origins. Logs each change, and each that needs a restart. With an error
// everything stays as it is. One thread at a time.
void Reload(const Flags& flags, Server& server, Configuration& running);

}  // namespace gradwire::server

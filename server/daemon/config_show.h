// What `gradwired config show` and `gradwired config schema` print.
#pragma once

#include <string>

#include "server/daemon/configuration.h"

namespace gradwire::server {

// A file that gives the same values; with `origins`, a comment after each says where it comes from.
std::string ShowYaml(const Configuration& configuration, bool origins);

// The same as JSON; with `origins`, {"value": ..., "origin": "..."} for each.
std::string ShowJson(const Configuration& configuration, bool origins);

// The file as JSON Schema 2020-12.
std::string Schema();

}  // namespace gradwire::server

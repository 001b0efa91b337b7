// The daemon's log, on stderr.
#pragma once

#include <string>

namespace gradwire::server {

// level: debug, info, warning or error. format: text or json, one object a line.
void SetUpLog(const std::string& level, const std::string& format);

}  // namespace gradwire::server

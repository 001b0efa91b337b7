// The daemon's log, on stderr.
#pragma once

#include <string>

namespace gradwire::server {

// level: debug, info, warning or error. format: text or json, one object a line.
// Takes what gRPC logs too, at most 5 lines a second of it.
void SetUpLog(const std::string& level, const std::string& format);

// While other threads log.
void ChangeLogLevel(const std::string& level);
void ChangeLogFormat(const std::string& format);

}  // namespace gradwire::server

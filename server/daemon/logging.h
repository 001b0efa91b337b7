// The daemon's log, on stderr; its last lines are also kept in memory.
#pragma once

#include <string>
#include <vector>

namespace gradwire::server {

// level: debug, info, warning or error. format: text or json, one object a line.
// Takes what gRPC logs too, at most 5 lines a second of it.
void SetUpLog(const std::string& level, const std::string& format);

// While other threads log.
void ChangeLogLevel(const std::string& level);
void ChangeLogFormat(const std::string& format);

// What LogRing has kept, oldest first, as it was written to stderr. Empty before SetUpLog.
std::vector<std::string> LastLogLines();

}  // namespace gradwire::server

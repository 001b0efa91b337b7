// What gradwirectl prints.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/v1/admin.pb.h"

namespace gradwire::ctl {

// Prints a JSON document in the format that was asked for.
using Print = std::function<void(const std::string& json)>;

// Begins with the sentence that says what is being waited for.
std::string StatusTable(const v1::GetServerResponse& server,
                        const v1::ListSessionsResponse& sessions);
std::string StatusJson(const v1::GetServerResponse& server,
                       const v1::ListSessionsResponse& sessions);
// The same of several daemons, by address; `sessions` is what MergeSessions makes of theirs.
using NamedServers = std::vector<std::pair<std::string, v1::GetServerResponse>>;
std::string ServersTable(const NamedServers& servers, const v1::ListSessionsResponse& sessions);
std::string ServersJson(const NamedServers& servers, const v1::ListSessionsResponse& sessions);

// Without the daemon's own figures.
std::string SessionsTable(const v1::ListSessionsResponse& sessions);
std::string SessionsJson(const v1::ListSessionsResponse& sessions);

// What each session waits for, or why it failed, and who keeps it waiting.
std::string Why(const v1::ListSessionsResponse& sessions);
std::string WhyJson(const v1::ListSessionsResponse& sessions);

std::string SessionTable(const v1::SessionStatus& session);
// "joining", "running", "pausing" while an operator's pause waits for the open step to end,
// "paused", "failed" or "closed".
std::string StateWord(const v1::SessionStatus& session);
// What the session is doing, as the rest of a sentence that begins with its name.
std::string Doing(const v1::SessionStatus& session);
std::string SessionJson(const v1::SessionStatus& session);

// `daemon` is empty, and null in the document, where none answers.
std::string VersionsJson(const std::string& tool, const std::string& daemon);

// With the proto's field names, also fields with the value 0. Ends with a line feed.
std::string MessageJson(const google::protobuf::Message& message);

}  // namespace gradwire::ctl

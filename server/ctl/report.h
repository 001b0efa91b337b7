// What gradwirectl prints.
#pragma once

#include <string>

#include "gradwire/v1/admin.pb.h"

namespace gradwire::ctl {

// Begins with the sentence that says what is being waited for.
std::string StatusTable(const v1::GetServerResponse& server,
                        const v1::ListSessionsResponse& sessions);
std::string StatusJson(const v1::GetServerResponse& server,
                       const v1::ListSessionsResponse& sessions);

// Without the daemon's own figures.
std::string SessionsTable(const v1::ListSessionsResponse& sessions);
std::string SessionsJson(const v1::ListSessionsResponse& sessions);

// What each session waits for, or why it failed, and who keeps it waiting.
std::string Why(const v1::ListSessionsResponse& sessions);
std::string WhyJson(const v1::ListSessionsResponse& sessions);

std::string SessionTable(const v1::SessionStatus& session);
std::string SessionJson(const v1::SessionStatus& session);

// `daemon` is empty, and null in the document, where none answers.
std::string VersionsJson(const std::string& tool, const std::string& daemon);

// With the proto's field names, also fields with the value 0. Ends with a line feed.
std::string MessageJson(const google::protobuf::Message& message);

}  // namespace gradwire::ctl

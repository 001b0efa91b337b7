// What a session is doing, as a whole.
#pragma once

#include <cstdint>
#include <string>

namespace gradwire::server {

enum class SessionState : std::uint8_t {
  kJoining,  // waits for its members
  kRunning,  // all members have joined
  kFailed,   // ended with an error for every member
  kClosed,   // ended: all members have left
};

// As status and messages show it: "joining".
std::string Name(SessionState state);

}  // namespace gradwire::server

#include "server/core/session_state.h"

namespace gradwire::server {

std::string Name(SessionState state) {
  switch (state) {
    case SessionState::kJoining:
      return "joining";
    case SessionState::kRunning:
      return "running";
    case SessionState::kFailed:
      return "failed";
    case SessionState::kClosed:
      return "closed";
  }
  return "unknown";
}

}  // namespace gradwire::server

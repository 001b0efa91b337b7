// An operator pauses a session, and lets it go on.
#include <string>

#include "server/core/step.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

absl::StatusOr<SessionRunner::Paused> SessionRunner::Pause(absl::Duration length,
                                                           const std::string& reason,
                                                           absl::Time now) {
  absl::StatusOr<Paused> paused;
  Handle([&](SessionCore& core, Effects& effects) {
    core.Observe(now);
    if (absl::Status status = core.Pause(length, reason, now, effects); !status.ok()) {
      paused = status;
      return;
    }
    const bool holding = core.progress().gate().shut();
    paused = Paused{.step = core.step() + (holding ? 0 : 1), .holding = holding};
  });
  return paused;
}

absl::Status SessionRunner::Unpause(absl::Time now) {
  absl::Status status;
  Handle([&](SessionCore& core, Effects& effects) {
    core.Observe(now);
    status = core.Unpause(now, effects);
  });
  return status;
}

}  // namespace gradwire::server

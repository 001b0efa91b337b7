// Rosters that are claimed at the daemon's arbiter. On a work thread, as shared storage may take
// long, or be away.
#include <spdlog/spdlog.h>

#include <string>

#include "server/arbiter/file_arbiter.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

void SessionRunner::ClaimRoster(const ClaimRosterEffect& claim) {
  if (ended()) return;
  const absl::StatusOr<ClaimAnswer> answer = host_.arbiter->Claim(claim.lineage, claim.claim);
  Handle([&](SessionCore& core, Effects& effects) { core.RosterClaimed(answer, effects); });
}

void SessionRunner::ForgetRosters(const ForgetRostersEffect& forget) const {
  const absl::Status status = host_.arbiter->Forget(forget.lineage);
  if (status.ok()) return;
  spdlog::warn("session {} generation {}: its rosters stay at the arbiter: {}", options_.name,
               options_.generation, std::string(status.message()));
}

}  // namespace gradwire::server

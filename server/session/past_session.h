// What the registry keeps of a session that has ended.
#pragma once

#include "gradwire/v1/admin.pb.h"
#include "server/core/step_digests.h"

namespace gradwire::server {

struct PastSession {
  v1::SessionStatus status;
  StepDigests digests;
};

}  // namespace gradwire::server

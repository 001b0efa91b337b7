// The end of a failed session, as its members see it.
#pragma once

#include "absl/status/status.h"
#include "server/core/effects.h"

namespace gradwire::server {

class Membership;

// Every connected member gets `failure`, then its stream is closed.
void SendFailure(const absl::Status& failure, int blamed_rank, const Membership& membership,
                 Effects& effects);

}  // namespace gradwire::server

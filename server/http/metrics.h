// The daemon's metrics in Prometheus' text format.
#pragma once

#include <string>

#include "server/http/figures.h"

namespace gradwire::server {

// Labels are bounded: a session's series exist while it is listed, and those of members only for
// the first thousand members. `now` is the wall clock's, for timestamps.
std::string MetricsText(const Figures& figures, absl::Time now);

}  // namespace gradwire::server

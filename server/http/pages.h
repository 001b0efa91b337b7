// Which path shows what.
//
// /livez, /readyz     probes; with ?verbose a line for each part. For everybody
// /metrics            Prometheus' text format
// /                   the status page, which asks for the two below
// /api/v1/status      {"server": …, "sessions": […]}, as `gradwirectl -o json status` prints it
// /api/v1/session/X   one session, with its last steps; X is percent-encoded
#pragma once

#include "server/http/figures.h"
#include "server/http/http_server.h"

namespace gradwire::server {

HttpResponse Respond(const StatusSource& source, const HttpRequest& request);

}  // namespace gradwire::server

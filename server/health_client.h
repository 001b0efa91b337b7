// One grpc.health.v1 check, for gradwirectl and container probes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

namespace gradwire::server {

// Asks for `service` ("": the whole daemon). NOT_FOUND for a service that the daemon does not know.
grpc::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                         std::chrono::seconds timeout, bool* serving);

}  // namespace gradwire::server

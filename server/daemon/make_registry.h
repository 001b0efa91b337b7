// The registry that the daemon's options describe, with the reducer that they name.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "server/daemon/options.h"
#include "server/net/system_shares.h"
#include "server/session/registry.h"

namespace gradwire::server {

// FailedPrecondition says which GPU cannot be used, why, and what to do.
absl::StatusOr<std::shared_ptr<Registry>> MakeRegistry(const ServerOptions& options,
                                                       std::size_t memory_bytes,
                                                       const SystemShares& shares,
                                                       std::shared_ptr<AuditSink> audit);

}  // namespace gradwire::server

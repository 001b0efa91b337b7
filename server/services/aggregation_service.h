// gradwire.v1.AggregationService: translates calls into events of the registry and its sessions.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "gradwire/v1/aggregation.pb.h"
#include "server/core/manifest.h"
#include "server/daemon/options.h"
#include "server/rpc/methods.h"
#include "server/rpc/periodic_tasks.h"
#include "server/services/stream_limits.h"

namespace gradwire::server {

class MemoryBudget;
class Registry;
struct LocalSocket;

// Thread-safe. Outlives the calls of its methods.
class AggregationService final {
 public:
  // `has_room`: whether members may have connections besides their first. `local_socket`: where
  // members on this host are invited to; null: nowhere.
  AggregationService(const ServerOptions& options, std::shared_ptr<Registry> registry,
                     std::shared_ptr<PeriodicTasks> ticks, std::function<bool()> has_room,
                     std::shared_ptr<const LocalSocket> local_socket);

  void AddTo(Methods& methods);

 private:
  absl::Status Join(const v1::JoinRequest& request, Manifest manifest, v1::JoinResponse& response,
                    const Caller& caller);
  absl::Status Leave(const v1::LeaveRequest& request, const Caller& caller);

  const ServerOptions options_;
  const StreamLimits stream_limits_;
  const bool shares_memory_;  // with members on this host: it has a unix socket
  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<MemoryBudget> upload_memory_;
  const std::shared_ptr<PeriodicTasks> ticks_;
  const std::function<bool()> has_room_;
  const std::shared_ptr<const LocalSocket> local_socket_;
};

}  // namespace gradwire::server

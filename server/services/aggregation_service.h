// gradwire.v1.AggregationService: translates calls into events of the registry and its sessions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/v1/aggregation.pb.h"
#include "server/rpc/methods.h"
#include "server/rpc/periodic_tasks.h"
#include "server/services/join_refusals.h"
#include "server/services/join_request.h"
#include "server/services/stream_limits.h"

namespace gradwire::server {

class MemoryBudget;
class Registry;

// The unix socket to which members on this host are invited.
struct Invitation {
  // Names it to the member that joins with this start id. Null: there is none.
  std::function<void(std::uint64_t start_id, v1::LocalSocket& socket)> invite = nullptr;
  // OK if the proof is of who was invited with this start id.
  std::function<absl::Status(const v1::MoveRequest& request)> check = nullptr;
};

// Thread-safe. Outlives the calls of its methods.
class AggregationService final {
 public:
  // `has_room`: whether members may have connections besides their first.
  AggregationService(const ServerOptions& options, std::shared_ptr<Registry> registry,
                     std::shared_ptr<PeriodicTasks> ticks, std::function<bool()> has_room,
                     Invitation invitation = {});

  void AddTo(Methods& methods);

  const JoinRefusals& refusals() const { return refusals_; }

 private:
  // A join that comes too fast, before it costs anything.
  absl::Status Admit(const Caller& caller);
  // Counts and records what comes of it.
  absl::Status Join(const v1::JoinRequest& request,
                    absl::StatusOr<std::vector<ParameterSpec>> manifest, v1::JoinResponse& response,
                    const Caller& caller);
  absl::Status TryJoin(const v1::JoinRequest& request, Manifest manifest,
                       v1::JoinResponse& response, const Caller& caller);
  void OnRefused(const Caller& caller, const std::string& session, const absl::Status& why);
  absl::Status Move(const v1::MoveRequest& request, const Caller& caller);
  absl::Status Leave(const v1::LeaveRequest& request, const Caller& caller);

  const ServerOptions options_;
  const StreamLimits stream_limits_;
  const bool shares_memory_;  // with members on this host: it has a unix socket
  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<MemoryBudget> upload_memory_;
  const std::shared_ptr<PeriodicTasks> ticks_;
  const std::function<bool()> has_room_;
  JoinRefusals refusals_;
  const Invitation invitation_;
};

}  // namespace gradwire::server

#include "server/services/services.h"

#include <optional>
#include <utility>

#include "server/access/caller.h"
#include "server/rpc/clock.h"
#include "server/services/admin_service.h"
#include "server/services/aggregation_service.h"
#include "server/services/health_service.h"
#include "server/services/reflection_service.h"
#include "server/session/registry.h"
#include "server/session/session_memory.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

struct Services::Parts {
  AggregationService aggregation;
  AdminService admin;
  std::optional<HealthService> health{};  // once all that it tells of is known
};

Services::Services(const ServerOptions& options, const std::shared_ptr<Registry>& registry,
                   const std::shared_ptr<PeriodicTasks>& tasks, Connections connections)
    : registry_(registry),
      parts_(new Parts{.aggregation = AggregationService(options, registry, tasks,
                                                         std::move(connections.has_room),
                                                         std::move(connections.local_socket)),
                       .admin = AdminService(registry, tasks, std::move(connections.count))}) {}

Services::~Services() = default;

v1::GetServerResponse Services::DescribeServer() const {
  v1::GetServerResponse response;
  parts_->admin.GetServer(response);
  return response;
}

Methods Services::MakeMethods() {
  Methods methods;
  parts_->aggregation.AddTo(methods);
  parts_->admin.AddTo(methods);
  // After the services that it reports on have been added.
  parts_->health.emplace(methods.services());
  parts_->health->AddTo(methods);
  AddReflection(methods);
  return methods;
}

absl::StatusOr<wire::MemoryReply> Services::AttachMemory(wire::MemoryRequest request,
                                                         wire::GoOn go_on) const {
  const absl::StatusOr<MemberHandle> member =
      registry_->Find(request.token, request.start_id, kLocalIdentity);
  if (!member.ok()) return member.status();
  return member->session->memory().Attach(member->rank, std::move(request), MonotonicNow, go_on);
}

void Services::StopServing() { parts_->health->StopServing(); }

void Services::EndWatches() { parts_->health->EndWatches(); }

}  // namespace gradwire::server

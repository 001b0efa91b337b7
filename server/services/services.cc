#include "server/services/services.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/net/local_socket.h"
#include "server/rpc/clock.h"
#include "server/services/admin_service.h"
#include "server/services/aggregation_service.h"
#include "server/services/health_service.h"
#include "server/services/reflection_service.h"
#include "server/session/registry.h"
#include "server/session/session_memory.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

namespace {

Invitation InvitationTo(const std::shared_ptr<const LocalSocket>& socket) {
  if (socket == nullptr) return {};
  return {.invite =
              [socket](std::uint64_t start_id, v1::LocalSocket& invitation) {
                invitation.set_path(socket->path);
                invitation.set_key(socket->secret.KeyFor(start_id));
              },
          .check = [socket](const v1::MoveRequest& request) -> absl::Status {
            const std::string& proof = request.proof();
            if (proof.size() != wire::kProofBytes) {
              return absl::InvalidArgumentError(absl::StrCat(
                  "proof: has ", proof.size(), " bytes; allowed: ", wire::kProofBytes));
            }
            const std::string key = socket->secret.KeyFor(request.start_id());
            if (wire::SameProof(proof, wire::ProofOf(key, request.token()))) {
              return absl::OkStatus();
            }
            return absl::PermissionDeniedError(
                "proof: is not that of the member with this start id; only who joined may move");
          }};
}

}  // namespace

struct Services::Parts {
  AggregationService aggregation;
  AdminService admin;
  std::optional<HealthService> health{};  // once all that it tells of is known
};

Services::Services(const ServerOptions& options, const std::shared_ptr<Registry>& registry,
                   const std::shared_ptr<PeriodicTasks>& tasks, Owner owner)
    : registry_(registry),
      local_socket_(owner.local_socket),
      parts_(new Parts{
          .aggregation = AggregationService(options, registry, tasks, std::move(owner.has_room),
                                            InvitationTo(owner.local_socket)),
          .admin = AdminService(registry, tasks, std::move(owner.connections),
                                std::move(owner.diagnose))}) {}

Services::~Services() = default;

v1::GetServerResponse Services::DescribeServer() const {
  v1::GetServerResponse response;
  parts_->admin.GetServer(response);
  return response;
}

const JoinRefusals& Services::refused_joins() const { return parts_->aggregation.refusals(); }

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

Methods Services::MakeAdminMethods() {
  Methods methods;
  parts_->admin.AddTo(methods);
  parts_->health->AddTo(methods);
  AddReflection(methods);
  return methods;
}

absl::StatusOr<std::shared_ptr<const LocalSocket>> Services::FindLocalSocket(
    const ServerOptions& options) {
  return LocalSocket::Of(options.listen);
}

absl::StatusOr<std::string> Services::ProveSocket(std::uint64_t start_id,
                                                  const std::string& probe) const {
  if (local_socket_ != nullptr) return local_socket_->secret.Answer(start_id, probe);
  return absl::UnimplementedError("this daemon invites no members to its socket");
}

absl::StatusOr<wire::MemoryReply> Services::AttachMemory(wire::MemoryRequest request,
                                                         const std::string& identity,
                                                         wire::GoOn go_on) const {
  const absl::StatusOr<MemberHandle> member =
      registry_->Find(request.token, request.start_id, identity);
  if (!member.ok()) return member.status();
  return member->session->memory().Attach(member->rank, std::move(request), MonotonicNow, go_on);
}

void Services::StopServing() { parts_->health->StopServing(); }

void Services::EndWatches() { parts_->health->EndWatches(); }

}  // namespace gradwire::server

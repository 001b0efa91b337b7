#include "server/admin_service.h"

#include <utility>

#include "proto/wire/convert.h"
#include "server/answer.h"
#include "server/clock.h"
#include "server/state_streams.h"

namespace gradwire::server {
AdminService::AdminService(std::shared_ptr<const Registry> registry,
                           std::shared_ptr<TickList> ticks, std::function<int()> connections)
    : registry_(std::move(registry)),
      ticks_(std::move(ticks)),
      connections_(std::move(connections)),
      started_(MonotonicNow()) {}

grpc::ServerUnaryReactor* AdminService::GetServer(grpc::CallbackServerContext* context,
                                                  const v1::GetServerRequest* /*request*/,
                                                  v1::GetServerResponse* response) {
  response->set_version(GRADWIRE_VERSION);
  *response->mutable_uptime() = wire::ToProto(MonotonicNow() - started_);
  response->set_sessions(static_cast<std::uint32_t>(registry_->sessions()));
  response->set_connections(static_cast<std::uint32_t>(connections_()));
  response->set_reserved_bytes(registry_->reserved_bytes());
  response->set_memory_limit_bytes(registry_->limits().memory_bytes);
  response->set_draining(registry_->draining());
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::ListSessions(grpc::CallbackServerContext* context,
                                                     const v1::ListSessionsRequest* /*request*/,
                                                     v1::ListSessionsResponse* response) {
  for (v1::SessionStatus& session : registry_->List(MonotonicNow())) {
    *response->add_sessions() = std::move(session);
  }
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::GetSession(grpc::CallbackServerContext* context,
                                                   const v1::GetSessionRequest* request,
                                                   v1::GetSessionResponse* response) {
  absl::StatusOr<v1::SessionStatus> session = registry_->Status(request->session(), MonotonicNow());
  if (!session.ok()) return Answer(context, session.status());
  *response->mutable_session() = *std::move(session);
  return Answer(context, absl::OkStatus());
}

grpc::ServerWriteReactor<v1::ExportStateResponse>* AdminService::ExportState(
    grpc::CallbackServerContext* context, const v1::ExportStateRequest* request) {
  return ExportStream::Start(context, registry_->Get(request->session()), ticks_);
}

grpc::ServerReadReactor<v1::ImportStateRequest>* AdminService::ImportState(
    grpc::CallbackServerContext* context, v1::ImportStateResponse* response) {
  return ImportStream::Start(context, response, registry_, ticks_);
}

}  // namespace gradwire::server

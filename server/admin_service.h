// gradwire.v1.AdminService: what an operator asks.
#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "server/registry.h"
#include "server/tick_list.h"

namespace gradwire::server {

class AdminService final : public v1::AdminService::CallbackService {
 public:
  // `connections` counts the live ones.
  AdminService(std::shared_ptr<const Registry> registry, std::shared_ptr<TickList> ticks,
               std::function<int()> connections);

  grpc::ServerUnaryReactor* GetServer(grpc::CallbackServerContext* context,
                                      const v1::GetServerRequest* request,
                                      v1::GetServerResponse* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context,
                                       const v1::GetSessionRequest* request,
                                       v1::GetSessionResponse* response) override;
  grpc::ServerWriteReactor<v1::ExportStateResponse>* ExportState(
      grpc::CallbackServerContext* context, const v1::ExportStateRequest* request) override;
  grpc::ServerReadReactor<v1::ImportStateRequest>* ImportState(
      grpc::CallbackServerContext* context, v1::ImportStateResponse* response) override;

 private:
  const std::shared_ptr<const Registry> registry_;
  const std::shared_ptr<TickList> ticks_;
  const std::function<int()> connections_;
  const absl::Time started_;
};

}  // namespace gradwire::server

// gradwire.v1.AggregationService: translates calls into events of the registry and its sessions.
#pragma once

#include <memory>

#include "gradwire/v1/aggregation.grpc.pb.h"
#include "server/exchange_stream.h"
#include "server/options.h"
#include "server/registry.h"
#include "server/tick_list.h"

namespace gradwire::server {

// Exchange goes by bytes, so that payloads are not copied; the others by messages.
using AggregationBase = v1::AggregationService::WithRawCallbackMethod_Exchange<
    v1::AggregationService::WithCallbackMethod_Join<
        v1::AggregationService::WithCallbackMethod_Leave<
            v1::AggregationService::WithCallbackMethod_Watch<v1::AggregationService::Service>>>>;

class AggregationService final : public AggregationBase {
 public:
  AggregationService(const ServerOptions& options, std::shared_ptr<Registry> registry,
                     std::shared_ptr<TickList> ticks);

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request,
                                  v1::LeaveResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext* context) override;

 private:
  absl::Status DoJoin(const v1::JoinRequest& request, v1::JoinResponse& response);

  const ServerOptions options_;
  const StreamLimits stream_limits_;
  const bool shares_memory_;  // with members on this host: it has a unix socket
  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<TickList> ticks_;
};

}  // namespace gradwire::server

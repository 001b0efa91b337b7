#include "server/services/admin_service.h"

#include <utility>

#include "absl/time/clock.h"
#include "proto/wire/proto_conversion.h"
#include "server/access/permissions.h"
#include "server/rpc/clock.h"
#include "server/rpc/rpc_threads.h"
#include "server/services/state_streams.h"
#include "server/services/trace_stream.h"
#include "server/session/registry.h"

namespace gradwire::server {

AdminService::AdminService(std::shared_ptr<const Registry> registry,
                           std::shared_ptr<PeriodicTasks> ticks, std::function<int()> connections,
                           std::function<void(v1::GetDiagnosticsResponse&)> diagnose)
    : registry_(std::move(registry)),
      ticks_(std::move(ticks)),
      connections_(std::move(connections)),
      diagnose_(std::move(diagnose)),
      recordings_(std::make_shared<Recordings>()),
      started_(MonotonicNow()) {}

void AdminService::AddTo(Methods& methods) {
  methods.AddUnaryOf<v1::GetServerRequest, v1::GetServerResponse>(
      [this](const auto& /*request*/, auto& response, const Caller& caller) {
        GetServer(response, caller);
        return absl::OkStatus();
      });
  methods.AddUnaryOf<v1::ListSessionsRequest, v1::ListSessionsResponse>(
      [this](const auto& /*request*/, auto& response, const Caller& caller) {
        ListSessions(response, caller);
        return absl::OkStatus();
      });
  methods.AddUnaryOf<v1::GetSessionRequest, v1::GetSessionResponse>(
      [this](const auto& request, auto& response, const Caller& caller) {
        if (absl::Status may = CheckSession(caller, request.session()); !may.ok()) return may;
        return GetSession(request, response);
      });
  methods.AddUnaryOf<v1::GetDigestsRequest, v1::GetDigestsResponse>(
      [this](const auto& request, auto& response, const Caller& caller) {
        if (absl::Status may = CheckSession(caller, request.session()); !may.ok()) return may;
        return GetDigests(request, response);
      });
  methods.Add<v1::ExportStateRequest, v1::ExportStateResponse, ExportStream>(
      MethodKind::kServerStream, registry_, ticks_);
  methods.Add<v1::ImportStateRequest, v1::ImportStateResponse, ImportStream>(
      MethodKind::kClientStream, registry_, ticks_);
  methods.AddUnaryOf<v1::EvictSessionRequest, v1::EvictSessionResponse>(
      [this](const auto& request, auto& /*response*/, const Caller& caller) {
        if (absl::Status may = CheckSession(caller, request.session()); !may.ok()) return may;
        return EvictSession(request, caller);
      });
  methods.AddUnaryOf<v1::PauseSessionRequest, v1::PauseSessionResponse>(
      [this](const auto& request, auto& response, const Caller& caller) {
        if (absl::Status may = CheckSession(caller, request.session()); !may.ok()) return may;
        return PauseSession(request, response, caller);
      });
  methods.AddUnaryOf<v1::ResumeSessionRequest, v1::ResumeSessionResponse>(
      [this](const auto& request, auto& /*response*/, const Caller& caller) {
        if (absl::Status may = CheckSession(caller, request.session()); !may.ok()) return may;
        return ResumeSession(request, caller);
      });
  methods.AddUnary<v1::GetDiagnosticsRequest, v1::GetDiagnosticsResponse>(
      [this](const auto& /*request*/, auto& response) {
        GetDiagnostics(response);
        return absl::OkStatus();
      });
  methods.Add<v1::TraceSessionRequest, v1::TraceSessionResponse, TraceStream>(
      MethodKind::kServerStream, registry_, ticks_, recordings_);
}

void AdminService::GetServer(v1::GetServerResponse& response, const Caller& caller) const {
  response.set_version(GRADWIRE_VERSION);
  *response.mutable_uptime() = wire::ToProto(MonotonicNow() - started_);
  response.set_sessions(static_cast<std::uint32_t>(registry_->SessionsOf(caller)));
  response.set_connections(static_cast<std::uint32_t>(connections_()));
  response.set_reserved_bytes(registry_->reserved_bytes());
  response.set_memory_limit_bytes(registry_->memory_limit());
  *response.mutable_longest_lock_hold() =
      wire::ToProto(absl::FromChrono(registry_->longest_hold()));
  response.set_draining(registry_->draining());
  const absl::Time now = absl::Now();
  const std::int64_t seconds = absl::ToUnixSeconds(now);
  response.mutable_now()->set_seconds(seconds);
  response.mutable_now()->set_nanos(
      static_cast<std::int32_t>((now - absl::FromUnixSeconds(seconds)) / absl::Nanoseconds(1)));
}

// Takes every session's lock in turn, so another thread polls meanwhile.
void AdminService::ListSessions(v1::ListSessionsResponse& response, const Caller& caller) const {
  RpcThreads::YieldLeadership();
  for (v1::SessionStatus& session : registry_->List(MonotonicNow())) {
    if (caller.Covers(session.name())) *response.add_sessions() = std::move(session);
  }
}

absl::Status AdminService::GetSession(const v1::GetSessionRequest& request,
                                      v1::GetSessionResponse& response) const {
  absl::StatusOr<v1::SessionStatus> session = registry_->Status(request.session(), MonotonicNow());
  if (!session.ok()) return session.status();
  *response.mutable_session() = *std::move(session);
  return absl::OkStatus();
}

absl::Status AdminService::GetDigests(const v1::GetDigestsRequest& request,
                                      v1::GetDigestsResponse& response) const {
  absl::StatusOr<v1::GetDigestsResponse> digests = registry_->Digests(request, MonotonicNow());
  if (!digests.ok()) return digests.status();
  response = *std::move(digests);
  return absl::OkStatus();
}

// It reads files of /proc, and the log's lock may be busy.
void AdminService::GetDiagnostics(v1::GetDiagnosticsResponse& response) const {
  RpcThreads::YieldLeadership();
  response.set_version(GRADWIRE_VERSION);
  if (diagnose_) diagnose_(response);
}

}  // namespace gradwire::server

#include "server/ctl/calls.h"

#include <google/protobuf/empty.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/options.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "proto/tls/access_token.h"
#include "proto/tls/channel_credentials.h"
#include "proto/wire/proto_conversion.h"
#include "proto/wire/state_calls.h"
#include "proto/wire/status.h"

namespace gradwire::ctl {
namespace {

// gRPC's default of 4 MiB is too small for many sessions with many members.
constexpr int kMaxAnswer = 64 << 20;

// Steps in one answer of GetDigests.
constexpr std::int64_t kMostDigests = 4096;

// How to reach a daemon.
struct Line {
  std::shared_ptr<grpc::Channel> channel;
  std::string access_token;
};

absl::StatusOr<Line> Connect(const Target& target) {
  const auto credentials = tls::ChannelCredentials(target.address, target.tls);
  if (!credentials.ok()) return credentials.status();
  absl::StatusOr<std::string> token =
      tls::ReadAccessToken(TokenOf({.token_file = target.token_file}));
  if (!token.ok()) return token.status();
  if (absl::Status safe =
          tls::CheckTokenTravelsSafely(!token->empty(), !target.tls.ca.empty(), target.address);
      !safe.ok()) {
    return safe;
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxAnswer);
  // A proxy from the environment could not reach a daemon that listens on the loopback address.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  tls::ExpectHost(target.host, arguments);
  return Line{.channel = grpc::CreateCustomChannel(target.address, *credentials, arguments),
              .access_token = *std::move(token)};
}

// With a hint where TLS or a wrong port explains the error.
absl::Status Refused(const Target& target, const grpc::Status& status) {
  absl::Status plain = wire::FromGrpc(status);
  if (!absl::IsUnavailable(plain)) return plain;
  const std::string why(plain.message());
  const bool encrypts = !target.tls.ca.empty();
  // gRPC's words for an answer in HTTP/1.
  const std::string hint =
      absl::StrContains(why, "http1.x server")
          ? "this looks like an HTTP port, such as that of the daemon's page and metrics; give the "
            "gRPC address (--listen, by default port 29610)"
          : tls::Hint(why, encrypts);
  return Coded(tls::UnreachableCode(why, encrypts),
               hint.empty() ? plain : absl::UnavailableError(absl::StrCat(why, "; ", hint)));
}

void SetDeadline(const Target& target, grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(target.timeout));
}

template <typename Request, typename Response>
using Method = grpc::Status (v1::AdminService::Stub::*)(grpc::ClientContext*, const Request&,
                                                        Response*);

template <typename Request, typename Response>
absl::StatusOr<Response> Call(const Target& target, Method<Request, Response> method,
                              const Request& request) {
  const auto line = Connect(target);
  if (!line.ok()) return line.status();
  const auto stub = v1::AdminService::NewStub(line->channel);
  grpc::ClientContext context;
  SetDeadline(target, context);
  tls::AddAccessToken(line->access_token, context);
  Response response;
  const grpc::Status status = ((*stub).*method)(&context, request, &response);
  if (!status.ok()) return Refused(target, status);
  return response;
}

}  // namespace

absl::StatusOr<v1::GetServerResponse> GetServer(const Target& target) {
  return Call(target, &v1::AdminService::Stub::GetServer, v1::GetServerRequest());
}

absl::Status EvictSession(const Target& target, const std::string& name,
                          const std::string& reason) {
  v1::EvictSessionRequest request;
  request.set_session(name);
  request.set_reason(reason);
  return Call(target, &v1::AdminService::Stub::EvictSession, request).status();
}

absl::StatusOr<v1::PauseSessionResponse> PauseSession(const Target& target, const std::string& name,
                                                      absl::Duration length,
                                                      const std::string& reason) {
  v1::PauseSessionRequest request;
  request.set_session(name);
  *request.mutable_duration() = wire::ToProto(length);
  request.set_reason(reason);
  return Call(target, &v1::AdminService::Stub::PauseSession, request);
}

absl::Status ResumeSession(const Target& target, const std::string& name) {
  v1::ResumeSessionRequest request;
  request.set_session(name);
  return Call(target, &v1::AdminService::Stub::ResumeSession, request).status();
}

absl::StatusOr<v1::GetDiagnosticsResponse> GetDiagnostics(const Target& target) {
  return Call(target, &v1::AdminService::Stub::GetDiagnostics, v1::GetDiagnosticsRequest());
}

absl::StatusOr<v1::ListSessionsResponse> ListSessions(const Target& target) {
  return Call(target, &v1::AdminService::Stub::ListSessions, v1::ListSessionsRequest());
}

absl::StatusOr<v1::SessionStatus> GetSession(const Target& target, const std::string& name) {
  v1::GetSessionRequest request;
  request.set_session(name);
  const auto response = Call(target, &v1::AdminService::Stub::GetSession, request);
  if (!response.ok()) return response.status();
  return response->session();
}

absl::StatusOr<v1::GetDigestsResponse> GetDigests(const Target& target, const std::string& name,
                                                  std::int64_t first, std::int64_t count) {
  v1::GetDigestsResponse all;
  while (true) {
    const std::int64_t left = count == 0 ? kMostDigests : count - all.digests_size();
    v1::GetDigestsRequest request;
    request.set_session(name);
    request.set_first(first);
    request.set_count(static_cast<std::int32_t>(std::min(left, kMostDigests)));
    const auto page = Call(target, &v1::AdminService::Stub::GetDigests, request);
    if (!page.ok()) return page.status();
    all.MergeFrom(*page);
    if (page->digests_size() < request.count() || all.digests_size() == count) return all;
    first = all.digests(all.digests_size() - 1).step() + 1;
  }
}

absl::StatusOr<std::string> ExportState(const Target& target, const std::string& session) {
  const auto line = Connect(target);
  if (!line.ok()) return line.status();
  const auto stub = v1::AdminService::NewStub(line->channel);
  return wire::FetchState(*stub, session, line->access_token, target.timeout);
}

absl::StatusOr<std::int64_t> ImportState(const Target& target, const std::string& session,
                                         const std::string& state, std::uint32_t daemons) {
  const auto line = Connect(target);
  if (!line.ok()) return line.status();
  const auto stub = v1::AdminService::NewStub(line->channel);
  return wire::ReplaceState(*stub, session, state, daemons, line->access_token, target.timeout);
}

absl::StatusOr<Trace> TraceSession(const Target& target, const std::string& name, int steps,
                                   absl::Duration wait) {
  const auto line = Connect(target);
  if (!line.ok()) return line.status();
  const auto stub = v1::AdminService::NewStub(line->channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(target.timeout + wait));
  tls::AddAccessToken(line->access_token, context);
  v1::TraceSessionRequest request;
  request.set_session(name);
  request.set_steps(steps);
  *request.mutable_wait() = wire::ToProto(wait);
  const auto reader = stub->TraceSession(&context, request);
  Trace trace;
  for (v1::TraceSessionResponse piece; reader->Read(&piece);) {
    if (piece.has_summary()) trace.summary = std::move(*piece.mutable_summary());
    for (v1::TimelineEvent& event : *piece.mutable_events()) {
      trace.events.push_back(std::move(event));
    }
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return Refused(target, status);
  return trace;
}

absl::StatusOr<bool> IsServing(const Target& target, const std::string& service) {
  // HealthCheckRequest {string service = 1;} and HealthCheckResponse {ServingStatus status = 1;} as
  // fields that Empty does not know: Debian ships no generated code for them.
  const auto line = Connect(target);
  if (!line.ok()) return line.status();
  using google::protobuf::Empty;
  using google::protobuf::UnknownField;
  constexpr int kField = 1;
  constexpr std::uint64_t kServing = 1;
  Empty request;
  Empty::GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(kField, service);
  Empty response;
  grpc::ClientContext context;
  SetDeadline(target, context);
  tls::AddAccessToken(line->access_token, context);
  // The generic stub has no blocking call.
  std::promise<grpc::Status> done;
  grpc::TemplatedGenericStub<Empty, Empty> stub(line->channel);
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  if (!status.ok()) return Refused(target, status);
  const auto& fields = Empty::GetReflection()->GetUnknownFields(response);
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    if (field.number() == kField && field.type() == UnknownField::TYPE_VARINT) {
      return field.varint() == kServing;
    }
  }
  // proto3 omits a field with the value 0, which is UNKNOWN.
  return false;
}

}  // namespace gradwire::ctl
